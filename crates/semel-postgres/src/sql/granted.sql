-- What a grant writes to a head `h`, in `lease` and in `take`: what the core's own grant would (`semel_core::lease::grant`). Where a job
-- says 0 for one of its times it has the template's; its place among leases is where the first of the two ends. `@worker` is who gets it.
-- These comments are for the reader alone: no function's text has them.
state = p_state, slot = p_slot, attempt = h.attempt + 1,
version = greatest(h.version + 1, v_now), fence = greatest(h.fence + 1, v_now),
started_at = v_now, worker = @worker,
visible_until = v_now + 1000 * CASE h.visibility_ms WHEN 0 THEN p_visibility_ms ELSE h.visibility_ms END,
run_until = v_now + 1000 * CASE h.timeout_ms WHEN 0 THEN p_timeout_ms ELSE h.timeout_ms END,
slot_at = v_now + 1000 * least(
    CASE h.visibility_ms WHEN 0 THEN p_visibility_ms ELSE h.visibility_ms END,
    CASE h.timeout_ms WHEN 0 THEN p_timeout_ms ELSE h.timeout_ms END)
