-- What each table and column is for is said in docs/schema.md.
CREATE TABLE {schema}sessions (
    session_id     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    status         TEXT NOT NULL CHECK (status IN ('active', 'paused', 'completed', 'failed')),
    metadata       JSONB NOT NULL DEFAULT '{}',
    started_at     TIMESTAMPTZ NOT NULL,
    last_active_at TIMESTAMPTZ NOT NULL,
    run_id         TEXT,
    run_started_at TIMESTAMPTZ,
    outcome        JSONB,
    ttl_seconds    DOUBLE PRECISION
);

CREATE INDEX sessions_active ON {schema}sessions (session_id) WHERE status = 'active';

CREATE TABLE {schema}agent_state_ledger (
    session_id    TEXT COLLATE "C" NOT NULL,
    agent_id      TEXT COLLATE "C" NOT NULL,
    checkpoint_id TEXT COLLATE "C",
    version       BIGINT NOT NULL,
    writer        TEXT   NOT NULL,
    owner         JSONB,
    state         JSONB,
    updated_at    TIMESTAMPTZ NOT NULL,
    deleted_at    TIMESTAMPTZ,
    PRIMARY KEY (session_id, agent_id)
);

CREATE INDEX agent_state_ledger_deleted ON {schema}agent_state_ledger (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE {schema}checkpoint_log (
    seq                  BIGINT GENERATED ALWAYS AS IDENTITY,
    session_id           TEXT COLLATE "C" NOT NULL,
    agent_id             TEXT COLLATE "C" NOT NULL,
    checkpoint_type      TEXT NOT NULL,
    checkpoint_id        TEXT COLLATE "C",
    parent_checkpoint_id TEXT COLLATE "C",
    root_checkpoint_id   TEXT COLLATE "C",
    run_id               TEXT COLLATE "C",
    task_id              TEXT COLLATE "C",
    call_id              TEXT COLLATE "C",
    attempt_id           TEXT COLLATE "C",
    payload              JSONB NOT NULL DEFAULT '{}',
    memory_ids           BYTEA,
    state_bytes          BIGINT,
    body                 BYTEA,
    created_at           TIMESTAMPTZ NOT NULL,
    CHECK (checkpoint_type <> 'checkpoint' OR body IS NOT NULL),
    PRIMARY KEY (session_id, agent_id, seq)
){by_session};

CREATE UNIQUE INDEX checkpoint_log_checkpoint ON {schema}checkpoint_log (session_id, agent_id, checkpoint_id)
    WHERE checkpoint_type = 'checkpoint';

CREATE INDEX checkpoint_log_rejected ON {schema}checkpoint_log (session_id, seq)
    WHERE checkpoint_type = 'write_rejected';

CREATE INDEX checkpoint_log_run ON {schema}checkpoint_log (run_id) WHERE run_id IS NOT NULL;

CREATE UNIQUE INDEX checkpoint_log_call ON {schema}checkpoint_log (session_id, call_id, attempt_id, checkpoint_type)
    WHERE call_id IS NOT NULL;

CREATE TABLE {schema}agent_memory (
    session_id TEXT COLLATE "C" NOT NULL,
    memory_id  BYTEA NOT NULL,
    encoding   TEXT  NOT NULL,
    plain_bytes INTEGER NOT NULL,
    children   BYTEA,
    content    BYTEA NOT NULL,
    PRIMARY KEY (session_id, memory_id)
){by_session};

CREATE TABLE {schema}pending_writes (
    session_id    TEXT COLLATE "C" NOT NULL,
    agent_id      TEXT COLLATE "C" NOT NULL,
    checkpoint_id TEXT COLLATE "C" NOT NULL,
    task_id       TEXT COLLATE "C" NOT NULL,
    idx           INTEGER NOT NULL,
    task_path     TEXT COLLATE "C" NOT NULL,
    channel       TEXT  NOT NULL,
    memory_ids    BYTEA,
    place         BYTEA NOT NULL,
    PRIMARY KEY (session_id, agent_id, checkpoint_id, task_id, idx)
){by_session};

CREATE UNLOGGED TABLE {schema}working_context (
    session_id TEXT COLLATE "C" NOT NULL,
    agent_id   TEXT COLLATE "C" NOT NULL,
    channel    TEXT COLLATE "C" NOT NULL,
    version    TEXT COLLATE "C" NOT NULL,
    task_id    TEXT COLLATE "C" NOT NULL,
    idx        INTEGER NOT NULL,
    task_path  TEXT COLLATE "C" NOT NULL,
    encoding   TEXT  NOT NULL,
    content    BYTEA NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, agent_id, channel, version, task_id, idx)
);

ALTER TABLE {schema}checkpoint_log ALTER COLUMN body SET STORAGE EXTERNAL;

ALTER TABLE {schema}agent_memory ALTER COLUMN content SET STORAGE EXTERNAL;

ALTER TABLE {schema}agent_memory ALTER COLUMN children SET STORAGE EXTERNAL;

-- a chunk of a few kilobytes is one row of one table, not four of two
ALTER TABLE {schema}agent_memory SET (toast_tuple_target = 8160);

ALTER TABLE {schema}pending_writes ALTER COLUMN place SET STORAGE EXTERNAL;

ALTER TABLE {schema}working_context ALTER COLUMN content SET STORAGE EXTERNAL;

CREATE VIEW {schema}rejected_writes AS
    SELECT * FROM {schema}checkpoint_log WHERE checkpoint_type = 'write_rejected';

CREATE TABLE {schema}ledger_secrets (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    secret BYTEA NOT NULL
);
