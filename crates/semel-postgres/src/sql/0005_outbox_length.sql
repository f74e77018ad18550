-- No job may be so long, and whoever relays an entry has all of it in memory. Entries that are there already are looked at by whoever
-- relays them; what became of one is written beside it whatever its length.
ALTER TABLE @.outbox ADD CONSTRAINT outbox_envelope_length
    CHECK (outcome IS NOT NULL OR octet_length(envelope::text) <= 8388608) NOT VALID;
