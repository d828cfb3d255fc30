-- in the order in which a save takes locks: heads, the log, writes
ALTER TABLE {schema}agent_state_ledger ADD COLUMN digest BYTEA;

ALTER TABLE {schema}agent_state_ledger ADD COLUMN deleted_through BIGINT;

ALTER TABLE {schema}checkpoint_log ADD COLUMN digest BYTEA;

ALTER TABLE {schema}checkpoint_log ADD COLUMN chain BYTEA;

ALTER TABLE {schema}pending_writes ADD COLUMN digest BYTEA;

ALTER TABLE {schema}pending_writes ADD COLUMN together INTEGER;

-- with the new columns, which on SQLite it has by itself
CREATE OR REPLACE VIEW {schema}rejected_writes AS
    SELECT * FROM {schema}checkpoint_log WHERE checkpoint_type = 'write_rejected';
