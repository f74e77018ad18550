-- Picks from a key's live holders, which are more than a decision may touch, at least one more than that number: first all that can
-- decide whether the key blocks, then others. A holder is covered, and cannot decide, if another in the same state with the same hold
-- was created and renewed no earlier and expires no earlier; one that expires and has begun is covered only by another such. A
-- renewal comes after the creation, so for a holder that was never renewed only the expiry is compared. Those that can decide are few
-- as long as callers use few policies for the key and most jobs expire in the order in which they were created; at worst they are all.
CREATE OR REPLACE FUNCTION @.deciding(p_live uuid[]) RETURNS uuid[]
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN ARRAY(
        SELECT w.id FROM (
            SELECT w.id, w.is_covered, row_number() OVER (ORDER BY w.is_covered, w.created_at DESC, w.id DESC) AS place FROM (
                SELECT h.id, h.created_at, coalesce(CASE
                    WHEN h.renewed_at IS NULL THEN max(coalesce(h.expires_at, @never)) OVER before >= coalesce(h.expires_at, @never)
                    ELSE max(coalesce(h.renewed_at, h.created_at)) FILTER (WHERE h.expires_at IS NULL) OVER before >= h.renewed_at
                END, false) AS is_covered
                FROM unnest(p_live) AS u(id) JOIN @.head h ON h.id = u.id
                WINDOW before AS (PARTITION BY h.state, h.hold, h.finished_at, h.expires_at IS NOT NULL AND h.attempt > 0
                    ORDER BY h.created_at DESC, h.id DESC
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
            ) AS w
        ) AS w
        WHERE NOT w.is_covered OR w.place <= @holders_max + 1 ORDER BY w.place);
END
$$;
