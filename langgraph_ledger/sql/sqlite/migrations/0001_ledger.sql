CREATE TABLE sessions ( -- one row for each thread: where it is in its life
    session_id     TEXT NOT NULL PRIMARY KEY, -- LangGraph's thread_id
    status         TEXT NOT NULL CHECK (status IN ('active', 'paused', 'completed', 'failed')), -- as the writes and ends of its runs tell
    metadata       TEXT NOT NULL DEFAULT '{}', -- of its last run that had any, for reading
    started_at     TEXT NOT NULL, -- when its first write came; times are UTC
    last_active_at TEXT NOT NULL, -- the last sign of life; may lag a second behind
    run_id         TEXT, -- fence token of the run that wrote last or is at work
    run_started_at TEXT, -- when that run began
    outcome        TEXT, -- how it ended where its writes do not tell: a breakpoint, a cancellation, a shutdown, an error
    ttl_seconds    REAL -- how long it may be idle before sweep() deletes it; NULL: for ever
) WITHOUT ROWID;

CREATE INDEX sessions_active -- for recoverable(): threads at work, or left by a crash
    ON sessions (session_id) WHERE status = 'active';

CREATE TABLE agent_state_ledger ( -- the heads: one row for each thread and namespace says what is current
    session_id    TEXT    NOT NULL, -- LangGraph's thread_id
    agent_id      TEXT    NOT NULL, -- LangGraph's checkpoint_ns; '' is the root graph, whose row decides for all of the thread
    checkpoint_id TEXT, -- the latest checkpoint; NULL before the first one and after a deletion
    version       INTEGER NOT NULL, -- raised by every claim and every new head; a write states the one that its run has read
    writer        TEXT    NOT NULL, -- fence token of the run that may write on
    owner         TEXT, -- the process of that run: host, pid, when the process started
    state         TEXT, -- the state as JSON, for reading; what is large or unusual is described
    updated_at    TEXT    NOT NULL, -- when the row was written last
    deleted_at    TEXT, -- when the thread was deleted: a tombstone, so that a late write does not bring it back
    PRIMARY KEY (session_id, agent_id)
) WITHOUT ROWID;

CREATE INDEX agent_state_ledger_deleted -- for removing old tombstones
    ON agent_state_ledger (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE checkpoint_log ( -- the log, append-only: checkpoints, starts and ends of calls, holds, refused writes
    seq                  INTEGER NOT NULL PRIMARY KEY, -- the order of entries; ids and times are not trusted for it
    session_id           TEXT    NOT NULL, -- LangGraph's thread_id
    agent_id             TEXT    NOT NULL, -- LangGraph's checkpoint_ns
    checkpoint_type      TEXT    NOT NULL, -- checkpoint, tool_call_started and other tool_call_..., resource_held, resource_released, write_rejected
    checkpoint_id        TEXT, -- the checkpoint that the entry is, or that it follows
    parent_checkpoint_id TEXT, -- the checkpoint before it
    root_checkpoint_id   TEXT, -- the root graph's checkpoint under which a nested one, or a call, was made
    run_id               TEXT, -- of a checkpoint: the run_id of its metadata; of a call: the fence token of its run
    task_id              TEXT, -- LangGraph's task that made the call
    call_id              TEXT, -- the call: a tool call's id, the key of once(), a resource that is held
    attempt_id           TEXT, -- the same for the start and the end of one attempt at a call
    payload              TEXT    NOT NULL DEFAULT '{}', -- for reading: metadata of a checkpoint, facts of a call, versions of a refusal
    memory_ids           BLOB, -- the chunks that the body refers to, 16 bytes each
    state_bytes          INTEGER, -- what the state of a checkpoint takes when serialised, however little of it is new
    body                 BLOB, -- the checkpoint itself, or the values of a call, with a digest or encrypted
    created_at           TEXT    NOT NULL, -- when the entry was made
    CHECK (checkpoint_type <> 'checkpoint' OR body IS NOT NULL)
);

CREATE UNIQUE INDEX checkpoint_log_checkpoint -- one checkpoint of an id; finding it
    ON checkpoint_log (session_id, agent_id, checkpoint_id)
    WHERE checkpoint_type = 'checkpoint';

CREATE INDEX checkpoint_log_order -- a history in its order
    ON checkpoint_log (session_id, agent_id, seq);

CREATE INDEX checkpoint_log_rejected -- for the view rejected_writes
    ON checkpoint_log (session_id, seq)
    WHERE checkpoint_type = 'write_rejected';

CREATE INDEX checkpoint_log_run -- for delete_for_runs()
    ON checkpoint_log (run_id) WHERE run_id IS NOT NULL;

CREATE UNIQUE INDEX checkpoint_log_call -- one start and one end of an attempt; finding a call
    ON checkpoint_log (session_id, call_id, attempt_id, checkpoint_type)
    WHERE call_id IS NOT NULL;

CREATE TABLE agent_memory ( -- values in chunks, each once for a thread, under the digest of its bytes
    session_id TEXT NOT NULL, -- LangGraph's thread_id
    memory_id  BLOB NOT NULL, -- 128 bits of digest; a first bit of 0 says that the chunk is an index of others
    encoding   TEXT NOT NULL, -- how the content is packed
    plain_bytes INTEGER NOT NULL, -- its size before compression
    -- before the content: a column behind a large one is only reached through its overflow pages
    children   BLOB, -- the chunks that an index refers to, 16 bytes each
    content    BLOB NOT NULL, -- the bytes
    PRIMARY KEY (session_id, memory_id)
);

CREATE TABLE pending_writes ( -- what tasks wrote after a checkpoint, before the next one
    session_id    TEXT    NOT NULL, -- LangGraph's thread_id
    agent_id      TEXT    NOT NULL, -- LangGraph's checkpoint_ns
    checkpoint_id TEXT    NOT NULL, -- the checkpoint that the task followed
    task_id       TEXT    NOT NULL, -- LangGraph's task
    idx           INTEGER NOT NULL, -- the place among the writes of the task; below zero for interrupts, errors and the like
    task_path     TEXT    NOT NULL, -- where the task stands among others; writes are read in this order
    channel       TEXT    NOT NULL, -- the channel that was written
    memory_ids    BLOB, -- the chunks that the value is in, 16 bytes each
    place         BLOB NOT NULL, -- the value, or how to join it from its chunks
    PRIMARY KEY (session_id, agent_id, checkpoint_id, task_id, idx)
) WITHOUT ROWID;

CREATE TABLE working_context ( -- what is safe to lose: latest values of working channels, and what tasks wrote to them
    session_id TEXT    NOT NULL, -- LangGraph's thread_id
    agent_id   TEXT    NOT NULL, -- LangGraph's checkpoint_ns
    channel    TEXT    NOT NULL, -- the working channel
    version    TEXT    NOT NULL, -- the channel's version that a checkpoint names, or for a task's write the checkpoint it followed
    task_id    TEXT    NOT NULL, -- the task that wrote it; '' for the value itself
    idx        INTEGER NOT NULL, -- the place among the writes of the task
    task_path  TEXT    NOT NULL, -- where the task stands among others
    encoding   TEXT    NOT NULL, -- how the content is packed
    content    BLOB    NOT NULL, -- the value, sealed
    updated_at TEXT    NOT NULL, -- when it was written
    PRIMARY KEY (session_id, agent_id, channel, version, task_id, idx)
);

CREATE VIEW rejected_writes AS -- the entries of the log that are refusals
    SELECT * FROM checkpoint_log WHERE checkpoint_type = 'write_rejected';

CREATE TABLE ledger_secrets ( -- with encryption: what the ids of chunks are keyed with
    number INTEGER NOT NULL PRIMARY KEY, -- the order of secrets
    secret BLOB NOT NULL -- the key, itself encrypted
);
