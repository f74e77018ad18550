-- Grants leases on ready jobs, by a template. The takers are served one after the other, each up to its limit, from the queues in
-- the order named, and within a queue in the order of places. Ready jobs that may not be granted are answered too, unchanged, for
-- the server to settle. So are jobs under limits that are not closed, each of which counts towards its taker's limit like a granted
-- job; where nothing was granted and these leave no room, the last taker is also told of the jobs under limits that come next.
-- With an empty mark nothing is granted, and the answer is which jobs that would be: for each the index of its queue, whether
-- it would be granted or why not, its place, and its limit.
-- ARGV: mark, turn, clock, ahead, floor, how many jobs are looked at beyond the takers' limits, visibility, timeout, state,
-- event, how many jobs are looked at per limit, how many takers, each one's worker and limit, how many queues, their names, the
-- closed limits. Answers the time, and for each taker the jobs (id, head, body, notes) and those not granted (id, why).
-- The model (`Model::claim` of `semel-store`) defines which jobs are looked at, in which order and how far, and the core
-- (`semel_core::lease::grant`) which of them are granted and what a grant writes: this script must do the same.
local turn = tonumber(ARGV[2])
local now, emptied = time_of(ARGV[3], ARGV[4], ARGV[5])
if not now then
    return emptied
end

-- Builds the answer: for each taker its jobs, whose bodies are all read together, and those it was not granted.
local function answer_of(shares)
    local ids = {}
    for t = 1, #shares do
        for i = 1, #shares[t].ids do
            ids[#ids + 1] = shares[t].ids[i]
        end
    end
    local bodies, notes, n = get_all('b', ids), notes_of_all(ids), 0
    local answer = { digits(now) }
    for t = 1, #shares do
        local share, jobs = shares[t], {}
        for i = 1, #share.ids do
            n = n + 1
            jobs[i] = { share.ids[i], share.heads[i], bodies[n] or '', notes[n] }
        end
        answer[t + 1] = { jobs, share.refused }
    end
    return answer
end

local is_asked = ARGV[1] == ''
local said, refused
if not is_asked then
    said, refused = mark_of(ARGV[1], turn)
end
refused = refused or (not said and refusal())
if refused then
    return refused
end
local takers = tonumber(ARGV[12])
if said then
    local taken = {}
    for t = 1, takers do
        taken[t] = { ids = {}, heads = {}, refused = {} }
    end
    for from = 1, #said, 26 do
        local id = sub(said, from + 2, from + 17)
        local h = call('GET', BASE .. 'h' .. id)
        local of = taken[unpack_bytes('>I2', said, from)]
        -- Only if the job still has the lease of this grant.
        if of and h and sub(h, @AT_FENCE) == sub(said, from + 18, from + 25) and byte(h, 1) == @SLOT_LEASE then
            of.ids[#of.ids + 1], of.heads[#of.heads + 1] = id, h
        end
    end
    return answer_of(taken)
end
begin_writes(now)
local now_place = place_of(now)
local extra, visibility, timeout = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local state, event, lane_looks = tonumber(ARGV[9]), char(tonumber(ARGV[10])), tonumber(ARGV[11])
local first_queue = 14 + 2 * takers
local queues = tonumber(ARGV[first_queue - 1])
local closed, closed_count = {}, #ARGV - first_queue - queues + 1
for i = first_queue + queues, #ARGV do
    closed[ARGV[i]] = true
end

-- Compares places by their bytes, whatever Redis's locale.
local function is_first(a, b)
    for i = 1, 25 do
        local left, right = byte(a, i), byte(b, i)
        if left ~= right then
            return left < right
        end
    end
    return false
end

-- The first ready jobs of a queue, as many as are wanted; and whether those that may be looked at beyond them are left out. The
-- caller asks for these only if some of the first may not be granted, which is rare.
local function candidates(queue, wanted)
    local looks = wanted + extra
    -- Callers may name any number of limits, so the script never looks at all of them. A job among the first looked at is under
    -- a limit whose own first job is among them too: so only as many limits are read as there are looks, plus as many as are
    -- closed, which may come before them.
    local firsts = call('ZRANGE', BASE .. 'i' .. queue, 0, looks + closed_count - 1)
    if #firsts == 0 then
        local found = call('ZRANGE', BASE .. 'r' .. queue, 0, wanted - 1)
        return found, #found == wanted
    end
    local found = call('ZRANGE', BASE .. 'r' .. queue, 0, looks - 1)
    local per_lane, left_to_look = math.min(wanted, lane_looks), looks
    for f = 1, #firsts do
        if left_to_look == 0 then
            break
        end
        local lane = sub(firsts[f], -8)
        if not closed[lane] then
            left_to_look = left_to_look - 1
            local limited = { sub(firsts[f], 1, -9) }
            if per_lane > 1 then
                limited = call('ZRANGE', BASE .. 'l' .. queue .. lane, 0, per_lane - 1)
            end
            for i = 1, #limited do
                found[#found + 1] = limited[i]
            end
        end
    end
    table.sort(found, is_first)
    for i = #found, looks + 1, -1 do
        found[i] = nil
    end
    return found, false
end

-- Whether another holder of the job's key has a lease.
local function runs_beside(id, h)
    local key = key_of(h)
    if not key then
        return false
    end
    local live = holders_of(key_record(key)).live
    for i = 1, #live do
        local other = live[i] ~= id and head_of(live[i])
        if other and sub(other, @AT_VISIBLE) ~= NONE then
            return true
        end
    end
    return false
end

local function why_not(id, h)
    if flag(h, @FLAG_LIMITED) then
        return @WHY_LIMITED
    end
    local expires = sub(h, @AT_EXPIRY)
    if expires ~= NONE and not is_before(now_place, expires) then
        return @WHY_EXPIRED
    end
    if flag(h, @FLAG_EXHAUSTED) then
        return @WHY_EXHAUSTED
    end
    if flag(h, @FLAG_ALONE) and runs_beside(id, h) then
        return @WHY_OVERLAPS
    end
    return nil
end

-- The key of each candidate that has one.
local key_names = {}
-- Reads the heads of candidates, and their keys, as far as they are not known yet. Answers the candidates' ids.
local function fetch(members)
    local all, ids, wanted = {}, {}, {}
    for i = 1, #members do
        local id = sub(members[i], 10)
        all[i] = id
        if heads[id] == nil then
            ids[#ids + 1] = id
        end
    end
    fetch_heads(ids)
    local asked = {}
    for i = 1, #all do
        local id = all[i]
        local key = heads[id] and key_of(heads[id])
        key_names[id] = key
        if key and not keys[key] and not asked[key] then
            asked[key] = true
            wanted[#wanted + 1] = key
        end
    end
    fetch_keys(wanted)
    return all
end

-- How many jobs were granted, how many values that has added to `records` and `active`, and what is written and answered about
-- the jobs.
local granted, written, events, marks, seen = 0, 0, {}, {}, {}
local active = list_of(entering, 'a')
local shares, left = {}, 0
for t = 1, takers do
    local worker, limit = ARGV[11 + 2 * t], tonumber(ARGV[12 + 2 * t])
    shares[t] = {
        number = pack('>I2', t),
        worker = pack('>I2', #worker) .. worker,
        left = limit,
        ids = {},
        heads = {},
        refused = {},
    }
    left = left + limit
end
-- The index of the taker whose turn it is.
local taker = 1
local function take_one(share)
    share.left, left = share.left - 1, left - 1
end

-- The times that a grant writes, by the job's own visibility and timeout (`own`). `first` is its place among leases. `text` is
-- bytes 25 to 72 of its head: `own`, the places, when it started, and until when its lease and its run last.
local spans = {}
local function span_of(own)
    local found = spans[own]
    if not found then
        local own_visibility, own_timeout = unpack_bytes('>I4I4', own)
        local visible = place_of(now + 1000 * (own_visibility > 0 and own_visibility or visibility))
        local run = place_of(now + 1000 * (own_timeout > 0 and own_timeout or timeout))
        local first = is_before(run, visible) and run or visible
        found = { first = first, text = own .. first .. NONE .. now_place .. visible .. run }
        spans[own] = found
    end
    return found
end

-- Version, fence and attempt as in a head, the fence by itself, and the attempt as in an event, with an amount of 0. Most
-- grants of a claim have the same.
local usual = {}
local function numbers_of(version, fence, attempt)
    local is_usual = version == now and fence == now
    local found = is_usual and usual[attempt]
    if not found then
        local text = pack('>I8I8I4', version, fence, attempt)
        found = { text = text, fence = sub(text, 9, 16), attempt = sub(text, 17, 20) .. '\0\0\0\0' }
        if is_usual then
            usual[attempt] = found
        end
    end
    return found
end

local slot_and_state = char(@SLOT_LEASE, state)
-- Grants a ready job that is under no limit, and so filed in its queue's own set.
local function grant(id, h, share)
    local version, fence, attempt = unpack_bytes('>I8I8I4', h, 5)
    version, fence, attempt = max(version + 1, now), max(fence + 1, now), attempt + 1
    local after, key = names_of(h), key_names[id]
    local key_end = key and after + 31 or after - 1
    local worker_end = key_end + 2 + 256 * byte(h, key_end + 1) + byte(h, key_end + 2)
    local span, numbers = span_of(sub(h, 25, 32)), numbers_of(version, fence, attempt)
    local new = slot_and_state .. sub(h, 3, 4) .. numbers.text .. span.text
        .. sub(h, 73, key_end) .. share.worker .. sub(h, worker_end + 1)
    heads[id] = new
    records[written + 1], records[written + 2] = HEADS .. id, new
    active[written + 1], active[written + 2] = 0, span.first .. id
    written = written + 2
    local expires = sub(h, @AT_EXPIRY)
    if expires ~= NONE then
        place('x', expires .. id, false)
    end
    if key then
        touch_key(key_record(key), version)
    end
    granted = granted + 1
    local n = #share.ids + 1
    share.ids[n], share.heads[n] = id, new
    take_one(share)
    marks[granted] = share.number .. id .. numbers.fence
    events[granted] = event .. id .. numbers.attempt .. sub(h, 81, after - 1)
end

local function look_at(found, queue)
    local ids, name = fetch(found), ARGV[first_queue + queue]
    local gone, were = list_of(leaving, 'r' .. name), {}
    for i = 1, #found do
        while left > 0 and shares[taker].left == 0 do
            taker = taker + 1
        end
        local is_full = left == 0
        if is_full and granted > 0 then
            break
        end
        local share, id = shares[taker], ids[i]
        local h = head_of(id)
        -- A queue may be named twice: a job granted just now stays in the queue's set until everything is written.
        if h and byte(h, 1) == @SLOT_READY then
            local why = why_not(id, h)
            -- A caller that only asks is also shown the first job behind those that a claim would report.
            if is_asked then
                seen[#seen + 1] = pack('>I2', queue) .. char(why or @WHY_GRANTED) .. found[i] .. sub(h, @AT_LIMIT)
            end
            if is_full then
                if why ~= @WHY_LIMITED then
                    break
                end
                share.refused[#share.refused + 1] = { id, why }
            elseif why then
                share.refused[#share.refused + 1] = { id, why }
                if why == @WHY_LIMITED then
                    take_one(share)
                end
            else
                local was = byte(h, 2)
                were[was] = (were[was] or 0) + 1
                gone[#gone + 1] = found[i]
                grant(id, h, share)
            end
        end
    end
    for was, n in pairs(were) do
        count(name, was, -n)
        count(name, state, n)
    end
end

for q = first_queue, first_queue + queues - 1 do
    local queue = ARGV[q]
    if left == 0 then
        break
    end
    if call('GETRANGE', BASE .. 'q' .. queue, 8, 8) ~= '\1' then
        local wanted = left
        local found, are_more = candidates(queue, wanted)
        look_at(found, q - first_queue)
        if are_more and left > 0 then
            look_at(call('ZRANGE', BASE .. 'r' .. queue, wanted, wanted + extra - 1), q - first_queue)
        end
    end
end

if is_asked then
    return { digits(now), table.concat(seen) }
end
if granted > 0 then
    flush(table.concat(events))
    set_mark(ARGV[1], turn, table.concat(marks))
end
return answer_of(shares)
