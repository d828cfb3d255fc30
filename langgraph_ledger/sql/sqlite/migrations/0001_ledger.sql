CREATE TABLE sessions (
    session_id     TEXT NOT NULL PRIMARY KEY,
    status         TEXT NOT NULL CHECK (status IN ('active', 'paused', 'completed', 'failed')),
    metadata       TEXT NOT NULL DEFAULT '{}',
    started_at     TEXT NOT NULL,
    last_active_at TEXT NOT NULL,
    run_id         TEXT,
    run_started_at TEXT,
    outcome        TEXT,
    ttl_seconds    REAL
) WITHOUT ROWID;

CREATE INDEX sessions_active ON sessions (session_id) WHERE status = 'active';

CREATE TABLE agent_state_ledger (
    session_id    TEXT    NOT NULL,
    agent_id      TEXT    NOT NULL,
    checkpoint_id TEXT,
    version       INTEGER NOT NULL,
    writer        TEXT    NOT NULL,
    owner         TEXT,
    state         TEXT,
    updated_at    TEXT    NOT NULL,
    deleted_at    TEXT,
    PRIMARY KEY (session_id, agent_id)
) WITHOUT ROWID;

CREATE INDEX agent_state_ledger_deleted ON agent_state_ledger (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE checkpoint_log (
    seq                  INTEGER NOT NULL PRIMARY KEY,
    session_id           TEXT    NOT NULL,
    agent_id             TEXT    NOT NULL,
    checkpoint_type      TEXT    NOT NULL,
    checkpoint_id        TEXT,
    parent_checkpoint_id TEXT,
    root_checkpoint_id   TEXT,
    run_id               TEXT,
    task_id              TEXT,
    call_id              TEXT,
    attempt_id           TEXT,
    payload              TEXT    NOT NULL DEFAULT '{}',
    memory_ids           BLOB,
    state_bytes          INTEGER,
    body                 BLOB,
    created_at           TEXT    NOT NULL,
    CHECK (checkpoint_type <> 'checkpoint' OR body IS NOT NULL)
);

CREATE UNIQUE INDEX checkpoint_log_checkpoint ON checkpoint_log (session_id, agent_id, checkpoint_id)
    WHERE checkpoint_type = 'checkpoint';

CREATE INDEX checkpoint_log_order ON checkpoint_log (session_id, agent_id, seq);

CREATE INDEX checkpoint_log_rejected ON checkpoint_log (session_id, seq)
    WHERE checkpoint_type = 'write_rejected';

CREATE INDEX checkpoint_log_run ON checkpoint_log (run_id) WHERE run_id IS NOT NULL;

CREATE UNIQUE INDEX checkpoint_log_call ON checkpoint_log (session_id, call_id, attempt_id, checkpoint_type)
    WHERE call_id IS NOT NULL;

-- children before content: a column behind a large one is only reached through its overflow pages
CREATE TABLE agent_memory (
    session_id TEXT NOT NULL,
    memory_id  BLOB NOT NULL,
    encoding   TEXT NOT NULL,
    plain_bytes INTEGER NOT NULL,
    children   BLOB,
    content    BLOB NOT NULL,
    PRIMARY KEY (session_id, memory_id)
);

CREATE TABLE pending_writes (
    session_id    TEXT    NOT NULL,
    agent_id      TEXT    NOT NULL,
    checkpoint_id TEXT    NOT NULL,
    task_id       TEXT    NOT NULL,
    idx           INTEGER NOT NULL,
    task_path     TEXT    NOT NULL,
    channel       TEXT    NOT NULL,
    memory_ids    BLOB,
    place         BLOB NOT NULL,
    PRIMARY KEY (session_id, agent_id, checkpoint_id, task_id, idx)
) WITHOUT ROWID;

CREATE TABLE working_context (
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

CREATE VIEW rejected_writes AS
    SELECT * FROM checkpoint_log WHERE checkpoint_type = 'write_rejected';

CREATE TABLE ledger_secrets (
    number INTEGER NOT NULL PRIMARY KEY,
    secret BLOB NOT NULL
);
