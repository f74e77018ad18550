-- No request for a job may be longer, and the relay holds a whole entry in memory. The relay itself checks entries that exist already;
-- the outcome of an entry can be written whatever its length.
ALTER TABLE @.outbox ADD CONSTRAINT outbox_envelope_length
    CHECK (outcome IS NOT NULL OR octet_length(envelope::text) <= 8388608) NOT VALID;
