ALTER TABLE checkpoint_log -- of everything that the entry says; NULL if its saver made none
    ADD COLUMN digest BLOB;

ALTER TABLE checkpoint_log -- of checkpoints and refused writes: digest of all digests of the namespace up to this one
    ADD COLUMN chain BLOB;

ALTER TABLE agent_state_ledger -- of the state, and of the entry that the latest checkpoint is
    ADD COLUMN digest BLOB;

ALTER TABLE agent_state_ledger -- up to which seq the entries of the thread were deleted, if it was deleted once
    ADD COLUMN deleted_through INTEGER;

ALTER TABLE pending_writes -- of everything that the write says; NULL if its saver made none
    ADD COLUMN digest BLOB;

ALTER TABLE pending_writes -- how many writes its task gave at once, this one included
    ADD COLUMN together INTEGER;
