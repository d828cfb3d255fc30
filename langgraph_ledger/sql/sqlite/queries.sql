-- The ledger's queries, SQLite. Lock order everywhere: root row, namespace row, session, log.

-- fragment: walk
-- as many as a row of the tree can hold: 4 * INDEX_PIECES, or what stands in a body
positions (i) AS MATERIALIZED (
    SELECT 0 UNION ALL
    SELECT o.i + 1 FROM positions o
    WHERE o.i < MAX(96, (SELECT COALESCE(MAX(length(r.ids)), 0) / 16 FROM roots r))
),
-- an id whose first bit is clear is an index: its row refers to further rows
trees (session_id, ids) AS (
    SELECT r.session_id, r.ids FROM roots r WHERE length(r.ids) > 0
    UNION
    SELECT t.session_id, m.children
    FROM trees t
        CROSS JOIN positions o ON o.i * 16 < length(t.ids) AND substr(t.ids, o.i * 16 + 1, 1) < x'80'
        CROSS JOIN {schema}agent_memory m
            ON m.session_id = t.session_id AND m.memory_id = substr(t.ids, o.i * 16 + 1, 16)
    WHERE m.children IS NOT NULL
),
needed (session_id, memory_id) AS (
    SELECT DISTINCT t.session_id, substr(t.ids, o.i * 16 + 1, 16)
    FROM trees t CROSS JOIN positions o ON o.i * 16 < length(t.ids)
);

-- fragment: memory
{walk}
SELECT m.session_id, m.memory_id, m.encoding, m.content, m.children
FROM needed n CROSS JOIN {schema}agent_memory m
WHERE m.session_id = n.session_id AND m.memory_id = n.memory_id;

-- fragment: open_call
c.session_id = :session_id AND c.call_id IS NOT NULL AND c.checkpoint_type LIKE 'tool_call_%'
    -- what comes after the root's latest checkpoint, and what began at any time and never ended, nor was begun again
    AND (c.seq > COALESCE((
            SELECT MAX(r.seq) FROM {schema}checkpoint_log r
            WHERE r.session_id = :session_id AND r.agent_id = '' AND r.checkpoint_type = 'checkpoint'), 0)
        OR (c.checkpoint_type = 'tool_call_started' AND NOT EXISTS (
            SELECT 1 FROM {schema}checkpoint_log e
            WHERE e.session_id = :session_id AND e.call_id = c.call_id
                AND (e.attempt_id = c.attempt_id AND e.checkpoint_type <> 'tool_call_started'
                    OR e.checkpoint_type = 'tool_call_started' AND e.agent_id = c.agent_id
                        AND e.task_id = c.task_id AND e.seq > c.seq))))

-- fragment: call
c.seq, c.agent_id, c.checkpoint_type, c.run_id, c.task_id, c.call_id, c.attempt_id, c.payload, c.body, c.memory_ids, c.created_at,
    EXISTS (
        SELECT 1 FROM {schema}pending_writes p
        WHERE p.session_id = :session_id AND p.agent_id = c.agent_id AND p.checkpoint_id = c.checkpoint_id
            AND p.task_id = c.task_id AND p.idx >= 0)
    OR EXISTS (
        SELECT 1 FROM {schema}checkpoint_log n
        WHERE n.session_id = :session_id AND n.agent_id IN ('', c.agent_id) AND n.checkpoint_type = 'checkpoint'
            AND n.seq > c.seq),
    EXISTS (
        SELECT 1 FROM {schema}checkpoint_log k
        WHERE k.session_id = :session_id AND k.agent_id = c.agent_id AND k.checkpoint_id = c.checkpoint_id
            AND k.checkpoint_type = 'checkpoint')
    AND EXISTS (
        SELECT 1 FROM {schema}checkpoint_log k
        WHERE k.session_id = :session_id AND k.agent_id = '' AND k.checkpoint_id = c.root_checkpoint_id
            AND k.checkpoint_type = 'checkpoint')

-- fragment: entry
c.seq, c.session_id, c.agent_id, c.checkpoint_type, c.checkpoint_id, c.parent_checkpoint_id,
    c.run_id, c.task_id, c.payload, c.created_at, c.call_id, c.attempt_id, c.state_bytes

-- fragment: highest
COALESCE((SELECT MAX(x.seq) FROM {schema}checkpoint_log x), 0)

-- fragment: next
-- SQLite numbers on from the highest number that is left: in a thread that was deleted, from what it had, if that is
-- higher, for no number may mean two entries. NULL: SQLite's own
(SELECT d.deleted_through + 1 FROM {schema}agent_state_ledger d
    WHERE d.session_id = :session_id AND d.agent_id = ''
        AND d.deleted_through BETWEEN {highest} AND 1 << 62)

-- fragment: chained
-- the latest entry that holds a chain stands for what came before it; where there is none, the chain begins
COALESCE((
        SELECT ledger_chain(p.chain, (SELECT group_concat(hex(COALESCE(o.digest, zeroblob(33))), '') FROM (
                SELECT e.digest FROM {schema}checkpoint_log e
                WHERE e.session_id = :session_id AND e.agent_id = :agent_id
                    AND e.seq > p.seq AND e.checkpoint_type <> 'write_rejected' ORDER BY e.seq) o), :digest)
        FROM {schema}checkpoint_log p
        WHERE p.session_id = :session_id AND p.agent_id = :agent_id AND p.chain IS NOT NULL
        ORDER BY p.seq DESC LIMIT 1),
    ledger_chain(:genesis, (SELECT group_concat(hex(COALESCE(o.digest, zeroblob(33))), '') FROM (
            SELECT e.digest FROM {schema}checkpoint_log e
            WHERE e.session_id = :session_id AND e.agent_id = :agent_id
                AND e.checkpoint_type <> 'write_rejected' ORDER BY e.seq) o), :digest))

-- name: begin_read
BEGIN DEFERRED;

-- name: begin_write
BEGIN IMMEDIATE;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: begin_part
SAVEPOINT part;

-- name: commit_part
RELEASE SAVEPOINT part;

-- name: rollback_part
ROLLBACK TO SAVEPOINT part;

-- name: plan_simply
SELECT 1;

-- name: wait_briefly
SELECT 1;

-- name: lock_schema
SELECT 1;

-- name: create_schema
SELECT 1;

-- name: check_database
PRAGMA integrity_check(10);

-- name: find_migrations
SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'ledger_migrations';

-- name: create_migrations
CREATE TABLE IF NOT EXISTS ledger_migrations ( -- which migrations these tables have been through
    number     INTEGER NOT NULL PRIMARY KEY, -- the migration's number
    name       TEXT    NOT NULL, -- its name
    applied_at TEXT    NOT NULL -- when it was applied
);

-- name: count_partitions
SELECT 0;

-- name: read_migrations
SELECT number, name FROM {schema}ledger_migrations ORDER BY number;

-- name: record_migration
INSERT INTO {schema}ledger_migrations (number, name, applied_at) VALUES (:number, :name, :now);

-- name: claim
INSERT INTO {schema}agent_state_ledger AS l
    (session_id, agent_id, checkpoint_id, version, writer, owner, state, digest, updated_at)
SELECT :session_id, '', :checkpoint_id, 1, :writer, :owner, :state, :head_digest, :now
WHERE :read_version IS NULL OR :read_version = 0
    OR EXISTS (SELECT 1 FROM {schema}agent_state_ledger e WHERE e.session_id = :session_id AND e.agent_id = '')
ON CONFLICT (session_id, agent_id) DO UPDATE SET
    checkpoint_id = COALESCE(excluded.checkpoint_id, l.checkpoint_id),
    version = l.version + 1,
    writer = excluded.writer,
    owner = excluded.owner,
    state = COALESCE(excluded.state, l.state),
    digest = CASE WHEN excluded.checkpoint_id IS NULL THEN l.digest ELSE excluded.digest END,
    updated_at = excluded.updated_at,
    deleted_at = NULL
WHERE l.writer = :writer
    OR l.version = :read_version
    OR (:read_version IS NULL AND l.deleted_at IS NULL AND (:parent_id IS NULL OR l.checkpoint_id = :parent_id))
RETURNING version;

-- name: advance_root
UPDATE {schema}agent_state_ledger SET
    checkpoint_id = :checkpoint_id, version = version + 1, state = :state, digest = :head_digest,
    updated_at = :now
WHERE session_id = :session_id AND agent_id = '' AND writer = :writer
RETURNING version;

-- name: keep
SELECT version FROM {schema}agent_state_ledger
WHERE session_id = :session_id AND agent_id = '' AND writer = :writer;

-- name: keep_alone
SELECT version FROM {schema}agent_state_ledger
WHERE session_id = :session_id AND agent_id = '' AND writer = :writer;

-- name: advance_namespace
INSERT INTO {schema}agent_state_ledger AS l
    (session_id, agent_id, checkpoint_id, version, writer, state, digest, updated_at)
SELECT :session_id, :agent_id, :checkpoint_id, 1, :writer, :state, :head_digest, :now
WHERE {guard}
ON CONFLICT (session_id, agent_id) DO UPDATE SET
    checkpoint_id = excluded.checkpoint_id,
    version = l.version + 1,
    writer = excluded.writer,
    state = excluded.state,
    digest = excluded.digest,
    updated_at = excluded.updated_at;

-- name: share_namespace
-- before an entry that is no checkpoint: of a namespace whose first checkpoint is on its way there is no row to lock
SELECT :session_id, :agent_id;

-- name: insert_memory
INSERT INTO {schema}agent_memory (session_id, memory_id, encoding, plain_bytes, content, children)
SELECT :session_id, :memory_id, :encoding, :plain_bytes, :content, :children
WHERE {guard}
ON CONFLICT (session_id, memory_id) DO NOTHING;

-- name: insert_write_memory
INSERT INTO {schema}agent_memory (session_id, memory_id, encoding, plain_bytes, content, children)
SELECT :session_id, :memory_id, :encoding, :plain_bytes, :content, :children
WHERE {guard} AND EXISTS (
    SELECT 1 FROM {schema}checkpoint_log c
    WHERE c.session_id = :session_id AND c.agent_id = :agent_id AND c.checkpoint_id = :checkpoint_id
        AND c.checkpoint_type = 'checkpoint')
ON CONFLICT (session_id, memory_id) DO NOTHING;

-- name: insert_checkpoint
INSERT INTO {schema}checkpoint_log
    (seq, session_id, agent_id, checkpoint_type, checkpoint_id, parent_checkpoint_id, root_checkpoint_id,
     run_id, payload, memory_ids, state_bytes, body, created_at, digest, chain)
SELECT {next}, :session_id, :agent_id, 'checkpoint', :checkpoint_id, :parent_id, :root_id, :run_id, :payload, :memory_ids, :state_bytes,
    -- what is taken over from a parent is only safe while the parent exists; a NULL body breaks the CHECK
    CASE WHEN :reused_from IS NULL OR EXISTS (
        SELECT 1 FROM {schema}checkpoint_log p
        WHERE p.session_id = :session_id AND p.agent_id = :agent_id AND p.checkpoint_id = :reused_from
            AND p.checkpoint_type = 'checkpoint') THEN :body END,
    :now, :digest, CASE WHEN :digest IS NOT NULL THEN {chained} END
WHERE {guard};

-- name: insert_rejection
-- not again if its commit has gone through and only the answer was lost: then it is among the latest
INSERT INTO {schema}checkpoint_log
    (seq, session_id, agent_id, checkpoint_type, checkpoint_id, parent_checkpoint_id, attempt_id, payload, created_at,
     digest, chain)
SELECT {next}, :session_id, :agent_id, 'write_rejected', :checkpoint_id, :parent_id, :attempt_id, :payload, :now,
    :digest, CASE WHEN :locked = 1 THEN {chained} END
WHERE :attempt_id NOT IN (
    SELECT r.attempt_id FROM (
        SELECT l.attempt_id FROM {schema}checkpoint_log l
        WHERE l.session_id = :session_id AND l.checkpoint_type = 'write_rejected' ORDER BY l.seq DESC LIMIT 100) r
    WHERE r.attempt_id IS NOT NULL);

-- name: insert_call
INSERT INTO {schema}checkpoint_log
    (seq, session_id, agent_id, checkpoint_type, checkpoint_id, root_checkpoint_id, run_id, task_id, call_id,
     attempt_id, payload, memory_ids, body, created_at, digest)
SELECT {next}, :session_id, :agent_id, :checkpoint_type, :checkpoint_id, :root_id, :run_id, :task_id, :call_id,
    :attempt_id, :payload, :memory_ids, :body, :now, :digest
WHERE {guard}
ON CONFLICT (session_id, call_id, attempt_id, checkpoint_type) WHERE call_id IS NOT NULL DO NOTHING;

-- name: share_root
SELECT l.version FROM {schema}agent_state_ledger l WHERE l.session_id = :session_id AND l.agent_id = '';

-- name: insert_call_memory
-- what a call's end refers to; a thread that was deleted meanwhile has no start, and keeps nothing
INSERT INTO {schema}agent_memory (session_id, memory_id, encoding, plain_bytes, content, children)
SELECT :session_id, :memory_id, :encoding, :plain_bytes, :content, :children
WHERE EXISTS (
    SELECT 1 FROM {schema}checkpoint_log s
    WHERE s.session_id = :session_id AND s.call_id = :call_id AND s.attempt_id = :attempt_id
        AND s.checkpoint_type = :started)
ON CONFLICT (session_id, memory_id) DO NOTHING;

-- name: insert_call_end
INSERT INTO {schema}checkpoint_log
    (seq, session_id, agent_id, checkpoint_type, checkpoint_id, root_checkpoint_id, run_id, task_id, call_id,
     attempt_id, payload, memory_ids, body, created_at, digest)
SELECT {next}, :session_id, :agent_id, :checkpoint_type, :checkpoint_id, :root_id, :run_id, :task_id, :call_id,
    :attempt_id, :payload, :memory_ids, :body, :now, :digest
WHERE EXISTS (
    SELECT 1 FROM {schema}checkpoint_log s
    WHERE s.session_id = :session_id AND s.call_id = :call_id AND s.attempt_id = :attempt_id
        AND s.checkpoint_type = :started)
ON CONFLICT (session_id, call_id, attempt_id, checkpoint_type) WHERE call_id IS NOT NULL DO NOTHING;

-- name: insert_write
INSERT INTO {schema}pending_writes
    (session_id, agent_id, checkpoint_id, task_id, idx, task_path, channel, place, memory_ids,
     digest, together)
SELECT :session_id, :agent_id, :checkpoint_id, :task_id, :idx, :task_path, :channel, :place, :memory_ids,
    :digest, NULLIF(:together, 0)
WHERE {guard} AND EXISTS (
    SELECT 1 FROM {schema}checkpoint_log c
    WHERE c.session_id = :session_id AND c.agent_id = :agent_id AND c.checkpoint_id = :checkpoint_id
        AND c.checkpoint_type = 'checkpoint')
ON CONFLICT (session_id, agent_id, checkpoint_id, task_id, idx) DO NOTHING;

-- name: replace_write
INSERT INTO {schema}pending_writes
    (session_id, agent_id, checkpoint_id, task_id, idx, task_path, channel, place, memory_ids,
     digest, together)
SELECT :session_id, :agent_id, :checkpoint_id, :task_id, :idx, :task_path, :channel, :place, :memory_ids,
    :digest, NULLIF(:together, 0)
WHERE {guard} AND EXISTS (
    SELECT 1 FROM {schema}checkpoint_log c
    WHERE c.session_id = :session_id AND c.agent_id = :agent_id AND c.checkpoint_id = :checkpoint_id
        AND c.checkpoint_type = 'checkpoint')
ON CONFLICT (session_id, agent_id, checkpoint_id, task_id, idx) DO UPDATE SET
    task_path = excluded.task_path, channel = excluded.channel,
    place = excluded.place, memory_ids = excluded.memory_ids,
    digest = excluded.digest, together = excluded.together;

-- name: touch_session
INSERT INTO {schema}sessions AS s
    (session_id, status, metadata, started_at, last_active_at, run_id, run_started_at, ttl_seconds)
SELECT :session_id, COALESCE(:status, 'active'), COALESCE(:metadata, '{}'), :now, :now, :writer, :now, :ttl_seconds
WHERE {guard}
ON CONFLICT (session_id) DO UPDATE SET
    status = COALESCE(:status, s.status),
    metadata = COALESCE(:metadata, s.metadata),
    last_active_at = excluded.last_active_at,
    run_started_at = CASE WHEN s.run_id = excluded.run_id THEN s.run_started_at ELSE excluded.run_started_at END,
    run_id = excluded.run_id,
    outcome = NULL;

-- name: announce_owner
UPDATE {schema}agent_state_ledger SET owner = :owner, updated_at = :now
WHERE session_id = :session_id AND agent_id = '' AND version = :read_version AND deleted_at IS NULL;

-- name: begin_session
UPDATE {schema}sessions SET
    status = 'active', run_id = :writer, run_started_at = :now, last_active_at = :now, outcome = NULL
WHERE session_id = :session_id AND EXISTS (
    SELECT 1 FROM {schema}agent_state_ledger l
    WHERE l.session_id = :session_id AND l.agent_id = '' AND l.version = :read_version AND l.deleted_at IS NULL)
RETURNING session_id;

-- name: end_session
UPDATE {schema}sessions SET status = :status, outcome = :outcome, last_active_at = :now
WHERE session_id = :session_id AND run_id = :writer;

-- name: read_head
SELECT l.version, l.checkpoint_id, l.writer, l.owner, l.updated_at, l.deleted_at, s.status
FROM {schema}agent_state_ledger l LEFT JOIN {schema}sessions s ON s.session_id = l.session_id
WHERE l.session_id = :session_id AND l.agent_id = :agent_id;

-- name: read_checkpoint
SELECT c.checkpoint_id, c.parent_checkpoint_id, c.body, c.seq
FROM {schema}checkpoint_log c
WHERE c.session_id = :session_id AND c.agent_id = :agent_id AND c.checkpoint_type = 'checkpoint'
    AND c.checkpoint_id = COALESCE(:checkpoint_id, (
        SELECT n.checkpoint_id FROM {schema}agent_state_ledger n
        WHERE n.session_id = :session_id AND n.agent_id = :agent_id));

-- name: read_writes
SELECT p.task_path, p.task_id, p.idx, p.channel, p.place, p.memory_ids
FROM {schema}pending_writes p
WHERE p.session_id = :session_id AND p.agent_id = :agent_id
    AND p.checkpoint_id = COALESCE(:checkpoint_id, (
        SELECT n.checkpoint_id FROM {schema}agent_state_ledger n
        WHERE n.session_id = :session_id AND n.agent_id = :agent_id))
ORDER BY p.task_path, p.task_id, p.idx;

-- name: read_memory
WITH RECURSIVE roots (session_id, ids) AS (
    SELECT c.session_id, c.memory_ids FROM {schema}checkpoint_log c
    WHERE c.session_id = :session_id AND c.agent_id = :agent_id AND c.checkpoint_type = 'checkpoint'
        AND c.checkpoint_id = COALESCE(:checkpoint_id, (
            SELECT n.checkpoint_id FROM {schema}agent_state_ledger n
            WHERE n.session_id = :session_id AND n.agent_id = :agent_id))
    UNION ALL
    SELECT p.session_id, p.memory_ids FROM {schema}pending_writes p
    WHERE p.session_id = :session_id AND p.agent_id = :agent_id
        AND p.checkpoint_id = COALESCE(:checkpoint_id, (
            SELECT n.checkpoint_id FROM {schema}agent_state_ledger n
            WHERE n.session_id = :session_id AND n.agent_id = :agent_id))
),
{memory};

-- name: read_page_memory
WITH RECURSIVE roots (session_id, ids) AS (
    SELECT c.session_id, c.memory_ids
    FROM json_each(:keys) j CROSS JOIN {schema}checkpoint_log c
    WHERE c.session_id = :session_id AND c.agent_id = json_extract(j.value, '$[1]')
        AND c.checkpoint_id = json_extract(j.value, '$[2]') AND c.checkpoint_type = 'checkpoint'
    UNION ALL
    SELECT p.session_id, p.memory_ids
    FROM json_each(:keys) j CROSS JOIN {schema}pending_writes p
    WHERE p.session_id = :session_id AND p.agent_id = json_extract(j.value, '$[1]')
        AND p.checkpoint_id = json_extract(j.value, '$[2]')
),
{memory};

-- name: read_memory_of
WITH RECURSIVE roots (session_id, ids) AS (
    SELECT :session_id, :memory_ids
),
{memory};

-- name: read_page_writes
SELECT p.session_id, p.agent_id, p.checkpoint_id, p.task_path, p.task_id, p.idx, p.channel, p.place, p.memory_ids
FROM json_each(:keys) j CROSS JOIN {schema}pending_writes p
WHERE p.session_id = :session_id AND p.agent_id = json_extract(j.value, '$[1]')
    AND p.checkpoint_id = json_extract(j.value, '$[2]');

-- name: find_sequence
SELECT c.agent_id, c.seq FROM {schema}checkpoint_log c
WHERE c.session_id = :session_id AND c.agent_id IN ('', :agent_id) AND c.checkpoint_id = :checkpoint_id
    AND c.checkpoint_type = 'checkpoint';

-- name: find_checkpoint
SELECT c.seq FROM {schema}checkpoint_log c
WHERE c.session_id = :session_id AND c.agent_id = :agent_id AND c.checkpoint_id = :checkpoint_id
    AND c.checkpoint_type = 'checkpoint';

-- name: list_one
SELECT c.session_id, c.agent_id, c.checkpoint_id, c.parent_checkpoint_id, c.body, c.seq
FROM {schema}checkpoint_log c
WHERE c.session_id = :session_id AND c.checkpoint_id = :checkpoint_id AND c.checkpoint_type = 'checkpoint'
    AND (:agent_id IS NULL OR c.agent_id = :agent_id) AND c.seq < :before;

-- name: list_namespace
SELECT c.session_id, c.agent_id, c.checkpoint_id, c.parent_checkpoint_id, c.body, c.seq
FROM {schema}checkpoint_log c
WHERE c.session_id = :session_id AND c.agent_id = :agent_id AND c.checkpoint_type = 'checkpoint' AND c.seq < :before
    AND (:before_id IS NULL OR c.checkpoint_id < :before_id)
    AND NOT EXISTS (SELECT 1 FROM json_each(:filter) f WHERE NOT EXISTS (
        SELECT 1 FROM json_each(c.payload) m WHERE m.key = f.key AND m.value = f.value))
ORDER BY c.seq DESC LIMIT :page;

-- name: list_namespace_before_root
SELECT c.session_id, c.agent_id, c.checkpoint_id, c.parent_checkpoint_id, c.body, c.seq
FROM {schema}checkpoint_log c LEFT JOIN {schema}checkpoint_log r
    ON r.session_id = c.session_id AND r.agent_id = '' AND r.checkpoint_id = c.root_checkpoint_id
        AND r.checkpoint_type = 'checkpoint'
WHERE c.session_id = :session_id AND c.agent_id = :agent_id AND c.checkpoint_type = 'checkpoint' AND c.seq < :before
    AND CASE WHEN r.seq IS NULL THEN c.checkpoint_id < :before_id ELSE r.seq < :root_before END
    AND NOT EXISTS (SELECT 1 FROM json_each(:filter) f WHERE NOT EXISTS (
        SELECT 1 FROM json_each(c.payload) m WHERE m.key = f.key AND m.value = f.value))
ORDER BY c.seq DESC LIMIT :page;

-- name: list_session
SELECT c.session_id, c.agent_id, c.checkpoint_id, c.parent_checkpoint_id, c.body, c.seq
FROM {schema}checkpoint_log c
WHERE c.session_id = :session_id AND c.checkpoint_type = 'checkpoint' AND c.seq < :before
    AND (:before_id IS NULL OR c.checkpoint_id < :before_id)
    AND NOT EXISTS (SELECT 1 FROM json_each(:filter) f WHERE NOT EXISTS (
        SELECT 1 FROM json_each(c.payload) m WHERE m.key = f.key AND m.value = f.value))
ORDER BY c.seq DESC LIMIT :page;

-- name: list_everything
SELECT c.session_id, c.agent_id, c.checkpoint_id, c.parent_checkpoint_id, c.body, c.seq
FROM {schema}checkpoint_log c
WHERE c.checkpoint_type = 'checkpoint' AND c.seq < :before
    AND (:before_id IS NULL OR c.checkpoint_id < :before_id)
    AND NOT EXISTS (SELECT 1 FROM json_each(:filter) f WHERE NOT EXISTS (
        SELECT 1 FROM json_each(c.payload) m WHERE m.key = f.key AND m.value = f.value))
ORDER BY c.seq DESC LIMIT :page;

-- name: read_ancestors
SELECT c.checkpoint_id, c.parent_checkpoint_id, c.body
FROM {schema}checkpoint_log c
WHERE c.session_id = :session_id AND c.agent_id = :agent_id AND c.checkpoint_type = 'checkpoint'
    AND c.seq <= (
        SELECT f.seq FROM {schema}checkpoint_log f
        WHERE f.session_id = :session_id AND f.agent_id = :agent_id AND f.checkpoint_id = :checkpoint_id
            AND f.checkpoint_type = 'checkpoint')
ORDER BY c.seq DESC LIMIT :page;

-- name: read_lineage
WITH RECURSIVE chain (latest, checkpoint_id, parent_checkpoint_id) AS (
    SELECT c.checkpoint_id, c.checkpoint_id, c.parent_checkpoint_id
    FROM {schema}agent_state_ledger l CROSS JOIN {schema}checkpoint_log c
    WHERE l.session_id = :session_id AND l.agent_id = :agent_id AND c.session_id = :session_id
        AND c.agent_id = :agent_id AND c.checkpoint_id = l.checkpoint_id AND c.checkpoint_type = 'checkpoint'
    UNION -- not UNION ALL: so it ends even where somebody has made a circle of parents
    SELECT chain.latest, c.checkpoint_id, c.parent_checkpoint_id
    FROM chain CROSS JOIN {schema}checkpoint_log c
    WHERE c.session_id = :session_id AND c.agent_id = :agent_id AND c.checkpoint_id = chain.parent_checkpoint_id
        AND c.checkpoint_type = 'checkpoint'
)
SELECT latest, checkpoint_id, parent_checkpoint_id FROM chain;

-- name: read_channel_writes
SELECT p.checkpoint_id, p.task_path, p.task_id, p.idx, p.channel, p.place, p.memory_ids
FROM json_each(:checkpoint_ids) j CROSS JOIN {schema}pending_writes p
WHERE p.session_id = :session_id AND p.agent_id = :agent_id AND p.checkpoint_id = j.value
    AND p.channel IN (SELECT value FROM json_each(:channels));

-- name: read_sessions
SELECT s.session_id, s.status, s.metadata, s.started_at, s.last_active_at, s.run_id, s.run_started_at,
    s.outcome
FROM {schema}sessions s
WHERE :status IS NULL OR s.status = :status
ORDER BY s.last_active_at DESC, s.session_id LIMIT :page;

-- name: read_log
SELECT {entry}
FROM {schema}checkpoint_log c WHERE c.session_id = :session_id ORDER BY c.seq;

-- name: read_rejected
SELECT {entry}
FROM {schema}checkpoint_log c
WHERE c.checkpoint_type = 'write_rejected' AND c.session_id = :session_id ORDER BY c.seq;

-- name: read_all_rejected
SELECT {entry}
FROM {schema}checkpoint_log c WHERE c.checkpoint_type = 'write_rejected' ORDER BY c.seq;

-- name: read_open_calls
SELECT {call}
FROM {schema}checkpoint_log c WHERE {open_call}
ORDER BY c.seq;

-- name: read_open_call_memory
WITH RECURSIVE roots (session_id, ids) AS (
    SELECT c.session_id, c.memory_ids FROM {schema}checkpoint_log c WHERE {open_call}
),
{memory};

-- name: read_call
SELECT {call}
FROM {schema}checkpoint_log c WHERE c.session_id = :session_id AND c.call_id = :call_id
    AND c.checkpoint_type LIKE 'tool_call_%'
ORDER BY c.seq;

-- name: read_call_memory
WITH RECURSIVE roots (session_id, ids) AS (
    SELECT c.session_id, c.memory_ids FROM {schema}checkpoint_log c
    WHERE c.session_id = :session_id AND c.call_id = :call_id
),
{memory};

-- name: read_questions
SELECT c.call_id, c.payload
FROM {schema}checkpoint_log c
WHERE c.session_id = :session_id AND c.call_id IN (SELECT value FROM json_each(:call_ids))
    AND c.agent_id = :agent_id AND c.task_id = :task_id AND c.checkpoint_type LIKE 'tool_call_%'
ORDER BY c.seq;

-- name: read_held
SELECT c.seq, c.agent_id, c.task_id, c.call_id, c.attempt_id, c.payload, c.created_at
FROM {schema}checkpoint_log c
WHERE c.session_id = :session_id AND c.call_id IS NOT NULL AND c.checkpoint_type = 'resource_held'
    AND NOT EXISTS (
        SELECT 1 FROM {schema}checkpoint_log e
        WHERE e.session_id = :session_id AND e.call_id = c.call_id AND e.attempt_id = c.attempt_id
            AND e.checkpoint_type = 'resource_released')
ORDER BY c.seq;

-- name: read_session
SELECT s.session_id, s.status, s.metadata, s.started_at, s.last_active_at, s.run_id, s.run_started_at,
    s.outcome
FROM {schema}sessions s WHERE s.session_id = :session_id;

-- name: count_checkpoints
SELECT count(*), MIN(c.created_at), MAX(c.created_at) FROM {schema}checkpoint_log c
WHERE c.session_id = :session_id AND c.checkpoint_type = 'checkpoint';

-- name: read_nested_interrupts
SELECT p.task_path, p.task_id, p.idx, p.channel, p.place, p.memory_ids, p.agent_id, p.checkpoint_id
FROM {schema}agent_state_ledger l JOIN {schema}pending_writes p
    ON p.session_id = l.session_id AND p.agent_id = l.agent_id AND p.checkpoint_id = l.checkpoint_id
WHERE l.session_id = :session_id AND l.agent_id <> '' AND p.channel = '__interrupt__';

-- name: find_active
SELECT s.session_id, s.status, s.metadata, s.started_at, s.last_active_at, s.run_id, s.run_started_at,
    s.outcome, l.owner
FROM {schema}sessions s LEFT JOIN {schema}agent_state_ledger l ON l.session_id = s.session_id AND l.agent_id = ''
WHERE s.status = 'active' AND s.session_id > :after
ORDER BY s.session_id LIMIT :page;

-- name: find_unclear
SELECT DISTINCT c.session_id
FROM {schema}checkpoint_log c JOIN {schema}sessions s ON s.session_id = c.session_id
WHERE s.status <> 'active' AND c.call_id IS NOT NULL AND c.checkpoint_type IN ('tool_call_started', 'resource_held')
    AND NOT EXISTS (
        SELECT 1 FROM {schema}checkpoint_log e
        WHERE e.session_id = c.session_id AND e.call_id = c.call_id AND e.attempt_id = c.attempt_id
            AND e.checkpoint_type <> c.checkpoint_type)
ORDER BY c.session_id;

-- name: lock_session
SELECT l.version FROM {schema}agent_state_ledger l WHERE l.session_id = :session_id AND l.agent_id = '';

-- name: bury_session
INSERT INTO {schema}agent_state_ledger AS l (session_id, agent_id, version, writer, updated_at, deleted_at)
VALUES (:session_id, '', 1, :writer, :now, :now)
ON CONFLICT (session_id, agent_id) DO UPDATE SET
    version = l.version + 1, writer = excluded.writer, checkpoint_id = NULL, state = NULL, digest = NULL, owner = NULL,
    updated_at = excluded.updated_at, deleted_at = excluded.deleted_at;

-- name: note_deletion
UPDATE {schema}agent_state_ledger SET deleted_through = COALESCE((
    SELECT MAX(c.seq) FROM {schema}checkpoint_log c WHERE c.session_id = :session_id), deleted_through)
WHERE session_id = :session_id AND agent_id = '';

-- name: find_tombstones
SELECT l.session_id FROM {schema}agent_state_ledger l WHERE l.deleted_at < :expired
ORDER BY l.session_id LIMIT :page;

-- name: delete_tombstone
DELETE FROM {schema}agent_state_ledger
WHERE session_id = :session_id AND agent_id = '' AND deleted_at IS NOT NULL;

-- name: delete_namespaces
DELETE FROM {schema}agent_state_ledger WHERE session_id = :session_id AND agent_id <> '';

-- name: delete_namespace
DELETE FROM {schema}agent_state_ledger WHERE session_id = :session_id AND agent_id = :agent_id;

-- name: delete_session
DELETE FROM {schema}sessions WHERE session_id = :session_id;

-- name: delete_session_log
DELETE FROM {schema}checkpoint_log WHERE session_id = :session_id;

-- name: delete_session_memory
DELETE FROM {schema}agent_memory WHERE session_id = :session_id;

-- name: delete_session_writes
DELETE FROM {schema}pending_writes WHERE session_id = :session_id;

-- name: create_working
CREATE TABLE IF NOT EXISTS working_context (
    session_id TEXT    NOT NULL,
    agent_id   TEXT    NOT NULL,
    channel    TEXT    NOT NULL,
    version    TEXT    NOT NULL,
    task_id    TEXT    NOT NULL,
    idx        INTEGER NOT NULL,
    task_path  TEXT    NOT NULL,
    encoding   TEXT    NOT NULL,
    content    BLOB    NOT NULL,
    updated_at TEXT    NOT NULL,
    PRIMARY KEY (session_id, agent_id, channel, version, task_id, idx)
);

-- name: read_working
SELECT agent_id, channel, version, task_id, idx, task_path, encoding, content
FROM {schema}working_context WHERE session_id = :session_id;

-- name: drop_working_writes
DELETE FROM {schema}working_context
WHERE session_id = :session_id AND agent_id = :agent_id AND task_id <> '' AND version <> :checkpoint_id;

-- name: drop_working
-- the number of a version: of two branches with the same number neither drops the other's
DELETE FROM {schema}working_context
WHERE session_id = :session_id AND agent_id = :agent_id AND channel = :channel AND task_id = ''
    AND substr(version, 1, 10) <> :channel_number;

-- name: write_working
INSERT INTO {schema}working_context
    (session_id, agent_id, channel, version, task_id, idx, task_path, encoding, content, updated_at)
VALUES (:session_id, :agent_id, :channel, :channel_version, :task_id, :idx, :task_path, :encoding, :content, :now)
ON CONFLICT (session_id, agent_id, channel, version, task_id, idx) DO UPDATE SET
    encoding = excluded.encoding, content = excluded.content, updated_at = excluded.updated_at;

-- name: delete_session_working
DELETE FROM {schema}working_context WHERE session_id = :session_id;

-- name: find_runs
SELECT DISTINCT c.session_id FROM {schema}checkpoint_log c
WHERE c.run_id IN (SELECT value FROM json_each(:run_ids)) ORDER BY c.session_id;

-- name: fence_session
UPDATE {schema}agent_state_ledger SET version = version + 1, writer = :writer, updated_at = :now
WHERE session_id = :session_id AND agent_id = ''
RETURNING version;

-- name: read_session_checkpoints
SELECT c.agent_id, c.checkpoint_id, c.parent_checkpoint_id, c.root_checkpoint_id, c.run_id, c.body, c.seq,
    c.created_at
FROM {schema}checkpoint_log c
WHERE c.session_id = :session_id AND c.checkpoint_type = 'checkpoint' ORDER BY c.seq;

-- name: read_session_entries
SELECT {entry}, c.body, c.memory_ids, c.root_checkpoint_id, c.digest, c.chain
FROM {schema}checkpoint_log c WHERE c.session_id = :session_id ORDER BY c.seq;

-- name: read_session_writes
SELECT p.agent_id, p.checkpoint_id, p.task_path, p.task_id, p.idx, p.channel, p.place, p.memory_ids, p.digest, p.together
FROM {schema}pending_writes p WHERE p.session_id = :session_id;

-- name: read_session_chunks
SELECT m.session_id, m.memory_id, m.encoding, m.content, m.children, m.plain_bytes
FROM {schema}agent_memory m WHERE m.session_id = :session_id;

-- name: read_session_heads
SELECT l.agent_id, l.checkpoint_id FROM {schema}agent_state_ledger l WHERE l.session_id = :session_id;

-- name: read_session_ledger
SELECT l.agent_id, l.checkpoint_id, l.version, l.state, l.digest, l.deleted_at, l.deleted_through
FROM {schema}agent_state_ledger l WHERE l.session_id = :session_id ORDER BY l.agent_id;

-- name: read_log_heads
SELECT l.session_id, l.agent_id, c.seq, c.chain
FROM {schema}agent_state_ledger l JOIN {schema}checkpoint_log c
    ON c.session_id = l.session_id AND c.agent_id = l.agent_id AND c.seq = (
        SELECT p.seq FROM {schema}checkpoint_log p
        WHERE p.session_id = l.session_id AND p.agent_id = l.agent_id AND p.chain IS NOT NULL
        ORDER BY p.seq DESC LIMIT 1)
WHERE l.session_id = :session_id AND l.deleted_at IS NULL -- what a deleted thread has will be gone soon
ORDER BY l.agent_id;

-- name: delete_checkpoints
DELETE FROM {schema}checkpoint_log
WHERE session_id = :session_id AND checkpoint_type = 'checkpoint' AND (agent_id, checkpoint_id) IN (
    SELECT json_extract(j.value, '$[0]'), json_extract(j.value, '$[1]') FROM json_each(:keys) j);

-- name: delete_writes
DELETE FROM {schema}pending_writes
WHERE session_id = :session_id AND (agent_id, checkpoint_id) IN (
    SELECT json_extract(j.value, '$[0]'), json_extract(j.value, '$[1]') FROM json_each(:keys) j);

-- name: move_head
UPDATE {schema}agent_state_ledger SET checkpoint_id = :checkpoint_id, state = NULL, digest = NULL, updated_at = :now
WHERE session_id = :session_id AND agent_id = :agent_id;

-- name: delete_settled_calls
DELETE FROM {schema}checkpoint_log
WHERE session_id = :session_id AND call_id IS NOT NULL AND seq < :before
    AND NOT EXISTS (
        SELECT 1 FROM {schema}checkpoint_log p
        WHERE p.session_id = :session_id AND p.agent_id = '' AND p.checkpoint_type = 'checkpoint'
            AND p.checkpoint_id = checkpoint_log.root_checkpoint_id)
    AND EXISTS (
        SELECT 1 FROM {schema}checkpoint_log e
        WHERE e.session_id = :session_id AND e.call_id = checkpoint_log.call_id
            AND e.attempt_id = checkpoint_log.attempt_id
            AND e.checkpoint_type NOT IN ('tool_call_started', 'resource_held'));

-- name: delete_unused_memory
WITH RECURSIVE roots (session_id, ids) AS (
    SELECT c.session_id, c.memory_ids FROM {schema}checkpoint_log c WHERE c.session_id = :session_id
    UNION ALL
    SELECT p.session_id, p.memory_ids FROM {schema}pending_writes p WHERE p.session_id = :session_id
),
{walk}
DELETE FROM {schema}agent_memory
WHERE session_id = :session_id AND memory_id NOT IN (SELECT memory_id FROM needed);

-- name: read_log_ends
SELECT n.agent_id, n.entries, n.latest, (
    SELECT p.chain FROM {schema}checkpoint_log p
    WHERE p.session_id = :session_id AND p.agent_id = n.agent_id AND p.chain IS NOT NULL
    ORDER BY p.seq DESC LIMIT 1)
FROM (
    SELECT c.agent_id, count(*) AS entries, MAX(c.seq) AS latest
    FROM {schema}checkpoint_log c WHERE c.session_id = :session_id GROUP BY c.agent_id) n
ORDER BY n.agent_id;

-- name: delete_mark
DELETE FROM {schema}checkpoint_log
WHERE session_id = :session_id AND agent_id = :agent_id AND checkpoint_type = :checkpoint_type;

-- name: insert_mark
-- the chain begins anew, over everything that is left before it; its number is above those of all that was removed
INSERT INTO {schema}checkpoint_log
    (seq, session_id, agent_id, checkpoint_type, payload, created_at, digest, chain)
SELECT MAX({highest}, COALESCE(json_extract(:payload, '$.through'), 0)) + 1,
    :session_id, :agent_id, :checkpoint_type, :payload, :now, :digest,
    ledger_chain(:genesis, (SELECT group_concat(hex(COALESCE(o.digest, zeroblob(33))), '') FROM (
            SELECT e.digest FROM {schema}checkpoint_log e
            WHERE e.session_id = :session_id AND e.agent_id = :agent_id
                AND (e.checkpoint_type <> 'write_rejected' OR e.chain IS NOT NULL) ORDER BY e.seq) o), :digest);

-- name: copy_ledger
-- a version is nowhere lower than the checkpoints of its log have made it
INSERT INTO {schema}agent_state_ledger AS l
    (session_id, agent_id, checkpoint_id, version, writer, owner, state, digest, updated_at)
SELECT :target_id, s.agent_id, s.checkpoint_id, s.version, :writer, NULL, s.state, s.digest, :now
FROM {schema}agent_state_ledger s WHERE s.session_id = :session_id AND s.deleted_at IS NULL
ON CONFLICT (session_id, agent_id) DO UPDATE SET
    checkpoint_id = excluded.checkpoint_id, version = MAX(l.version, excluded.version) + 1, writer = excluded.writer,
    state = excluded.state, digest = excluded.digest, updated_at = excluded.updated_at, deleted_at = NULL
WHERE l.deleted_at IS NOT NULL
RETURNING agent_id;

-- name: copy_session
INSERT INTO {schema}sessions (session_id, status, metadata, started_at, last_active_at, ttl_seconds)
SELECT :target_id, CASE WHEN s.status = 'active' THEN 'paused' ELSE s.status END, s.metadata, :now, :now, s.ttl_seconds FROM {schema}sessions s WHERE s.session_id = :session_id;

-- name: copy_log
INSERT INTO {schema}checkpoint_log
    (seq, session_id, agent_id, checkpoint_type, checkpoint_id, parent_checkpoint_id, root_checkpoint_id,
     run_id, task_id, call_id, attempt_id, payload, memory_ids, state_bytes, body, created_at, digest)
SELECT row_number() OVER (ORDER BY c.seq) + MAX({highest},
        COALESCE((SELECT d.deleted_through FROM {schema}agent_state_ledger d
            WHERE d.session_id = :target_id AND d.agent_id = '' AND d.deleted_through <= 1 << 62), 0)),
    :target_id, c.agent_id, c.checkpoint_type, c.checkpoint_id, c.parent_checkpoint_id, c.root_checkpoint_id,
    c.run_id, c.task_id, c.call_id, c.attempt_id, c.payload, c.memory_ids, c.state_bytes, c.body, c.created_at, c.digest
FROM {schema}checkpoint_log c
WHERE c.session_id = :session_id AND (c.checkpoint_type = 'checkpoint' OR c.checkpoint_type LIKE 'tool_call_%')
ORDER BY c.seq;

-- name: copy_memory
INSERT INTO {schema}agent_memory (session_id, memory_id, encoding, plain_bytes, content, children)
SELECT :target_id, m.memory_id, m.encoding, m.plain_bytes, m.content, m.children FROM {schema}agent_memory m WHERE m.session_id = :session_id;

-- name: copy_writes
INSERT INTO {schema}pending_writes
    (session_id, agent_id, checkpoint_id, task_id, idx, task_path, channel, place, memory_ids,
     digest, together)
SELECT :target_id, p.agent_id, p.checkpoint_id, p.task_id, p.idx, p.task_path, p.channel, p.place, p.memory_ids,
    p.digest, p.together
FROM {schema}pending_writes p WHERE p.session_id = :session_id;

-- name: set_ttl
UPDATE {schema}sessions SET ttl_seconds = :ttl_seconds WHERE session_id = :session_id RETURNING session_id;

-- name: find_expired
SELECT s.session_id FROM {schema}sessions s
WHERE s.ttl_seconds IS NOT NULL AND julianday(s.last_active_at) + s.ttl_seconds / 86400.0 < julianday(:now) AND s.session_id > :after
ORDER BY s.session_id LIMIT :page;

-- name: find_sessions
SELECT s.session_id FROM {schema}sessions s
WHERE s.session_id > :after AND (:status IS NULL OR s.status = :status)
    AND (:idle_since IS NULL OR s.last_active_at < :idle_since)
ORDER BY s.session_id LIMIT :page;

-- name: find_threads
-- whatever has rows, with one in sessions or without; each table is read as far as a page needs it
SELECT t.session_id FROM (
    SELECT s.session_id FROM (
        SELECT DISTINCT session_id FROM {schema}sessions WHERE session_id > :after ORDER BY session_id LIMIT :page
    ) s
    UNION
    SELECT l.session_id FROM (
        SELECT DISTINCT session_id FROM {schema}agent_state_ledger WHERE session_id > :after ORDER BY session_id LIMIT :page
    ) l
    UNION
    SELECT c.session_id FROM (
        SELECT DISTINCT session_id FROM {schema}checkpoint_log WHERE session_id > :after ORDER BY session_id LIMIT :page
    ) c
    UNION
    SELECT m.session_id FROM (
        SELECT DISTINCT session_id FROM {schema}agent_memory WHERE session_id > :after ORDER BY session_id LIMIT :page
    ) m
    UNION
    SELECT p.session_id FROM (
        SELECT DISTINCT session_id FROM {schema}pending_writes WHERE session_id > :after ORDER BY session_id LIMIT :page
    ) p
) t
ORDER BY t.session_id LIMIT :page;

-- name: choose_sessions
SELECT s.session_id FROM {schema}sessions s
WHERE s.session_id IN (SELECT value FROM json_each(:session_ids)) AND (:status IS NULL OR s.status = :status)
    AND (:idle_since IS NULL OR s.last_active_at < :idle_since);

-- name: measure_session
SELECT
    (SELECT count(*) FROM {schema}checkpoint_log c
        WHERE c.session_id = :session_id AND c.checkpoint_type = 'checkpoint'),
    (SELECT count(*) FROM {schema}pending_writes p WHERE p.session_id = :session_id),
    (SELECT count(*) FROM {schema}agent_memory m WHERE m.session_id = :session_id),
    (SELECT COALESCE(SUM(length(c.body) + COALESCE(length(c.memory_ids), 0)), 0)
        FROM {schema}checkpoint_log c WHERE c.session_id = :session_id)
    + (SELECT COALESCE(SUM(length(p.place)), 0) FROM {schema}pending_writes p WHERE p.session_id = :session_id)
    + (SELECT COALESCE(SUM(length(m.content) + COALESCE(length(m.children), 0)), 0)
        FROM {schema}agent_memory m WHERE m.session_id = :session_id);

-- name: stats
SELECT
    (SELECT count(*) FROM {schema}agent_state_ledger l
        WHERE l.agent_id = '' AND l.deleted_at IS NULL AND (:session_id IS NULL OR l.session_id = :session_id)),
    (SELECT count(*) FROM {schema}checkpoint_log c WHERE c.checkpoint_type = 'checkpoint' AND (:session_id IS NULL OR c.session_id = :session_id)),
    (SELECT count(*) FROM {schema}pending_writes p WHERE (:session_id IS NULL OR p.session_id = :session_id)),
    (SELECT count(*) FROM {schema}agent_memory m WHERE (:session_id IS NULL OR m.session_id = :session_id)),
    (SELECT COALESCE(SUM(length(c.body) + COALESCE(length(c.memory_ids), 0)), 0) FROM {schema}checkpoint_log c
        WHERE :session_id IS NULL OR c.session_id = :session_id),
    (SELECT COALESCE(SUM(length(p.place)), 0) FROM {schema}pending_writes p WHERE (:session_id IS NULL OR p.session_id = :session_id)),
    (SELECT COALESCE(SUM(length(m.content) + COALESCE(length(m.children), 0)), 0) FROM {schema}agent_memory m
        WHERE (:session_id IS NULL OR m.session_id = :session_id)),
    (SELECT COALESCE(SUM(m.plain_bytes), 0) FROM {schema}agent_memory m WHERE (:session_id IS NULL OR m.session_id = :session_id)),
    (SELECT COALESCE(SUM(c.state_bytes), 0) FROM {schema}checkpoint_log c
        WHERE c.checkpoint_type = 'checkpoint' AND (:session_id IS NULL OR c.session_id = :session_id)),
    (SELECT COALESCE(SUM(c.state_bytes), 0)
        FROM {schema}agent_state_ledger l JOIN {schema}checkpoint_log c
            ON c.session_id = l.session_id AND c.agent_id = l.agent_id AND c.checkpoint_id = l.checkpoint_id
        WHERE c.checkpoint_type = 'checkpoint' AND (:session_id IS NULL OR l.session_id = :session_id)),
    (SELECT COALESCE(SUM(l.version), 0) FROM {schema}agent_state_ledger l WHERE (:session_id IS NULL OR l.session_id = :session_id)),
    (SELECT count(*) FROM {schema}checkpoint_log c WHERE c.checkpoint_type = 'write_rejected' AND (:session_id IS NULL OR c.session_id = :session_id));

-- name: size_on_disk
SELECT page_count * page_size FROM pragma_page_count() CROSS JOIN pragma_page_size();

-- name: compact_1
VACUUM;

-- name: compact_2
PRAGMA wal_checkpoint(TRUNCATE);

-- name: compact_3
PRAGMA optimize;

-- name: compact_4
SELECT 1;

-- name: compact_5
SELECT 1;

-- name: compact_6
SELECT 1;

-- name: read_secrets
SELECT s.secret FROM {schema}ledger_secrets s ORDER BY s.number;

-- name: add_secret
INSERT INTO {schema}ledger_secrets (secret) VALUES (:secret);

-- name: read_session_memory
SELECT m.memory_id, m.content FROM {schema}agent_memory m
WHERE m.session_id = :session_id AND m.memory_id > :after ORDER BY m.memory_id LIMIT :page;

-- name: replace_memory
UPDATE {schema}agent_memory SET content = :content WHERE session_id = :session_id AND memory_id = :memory_id;
