-- Grants leases on ready jobs, by a template: to each taker at most so many, from the queues in the order named, within one by their
-- places; the first taker gets the first. Ready jobs that may not be granted come back as well, unchanged, for the program to settle;
-- so do, in their places, jobs under limits that are not closed, and where nothing is granted and there is room for no more, those
-- under limits that come next; of these the last taker is told.
-- Without a mark it is only asked which jobs that would be: the place of each, its queue's number, whether it would be granted, and its limit.
-- ARGV: mark, turn, clock, ahead, floor, looks beyond the limits, visibility, timeout, state, event, looks per limit, how many takers,
-- each one's worker and limit, how many queues, they, the closed limits. Answers the time, and for each taker the jobs (id, head,
-- body, notes) and those not granted (id, why).
local turn = tonumber(ARGV[2])
local now = time_of(ARGV[3], ARGV[4], ARGV[5])

-- What takers are answered: the jobs of each, their bodies read for all at once, and those it was not granted.
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
        -- Still this grant's.
        if of and h and sub(h, 13, 20) == sub(said, from + 18, from + 25) and byte(h, 1) == 3 then
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

-- In the order of their bytes, whatever the server's language.
local function is_first(a, b)
    for i = 1, 25 do
        local left, right = byte(a, i), byte(b, i)
        if left ~= right then
            return left < right
        end
    end
    return false
end

-- Ready jobs of a queue: as many as are wanted, and whether those that may be looked at beyond are left out. They are asked for
-- only when some of the first may not be granted, which is seldom.
local function candidates(queue, wanted)
    local looks = wanted + extra
    -- Limits are as many as callers name, and all of them are never looked at. What comes among the first is under a limit whose
    -- own first does, so only as many limits as there are looks are read, beside the closed ones that may come before them.
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

-- Whether another holder of its key has a lease.
local function runs_beside(id, h)
    local key = key_of(h)
    if not key then
        return false
    end
    local live = holders_of(key_record(key)).live
    for i = 1, #live do
        local other = live[i] ~= id and head_of(live[i])
        if other and sub(other, 57, 64) ~= NONE then
            return true
        end
    end
    return false
end

local function why_not(id, h)
    if flag(h, 8) then
        return 3
    end
    local expires = sub(h, 41, 48)
    if expires ~= NONE and not is_before(now_place, expires) then
        return 0
    end
    if flag(h, 1) then
        return 1
    end
    if flag(h, 2) and runs_beside(id, h) then
        return 2
    end
    return nil
end

-- Reads the heads of candidates and their keys, those that are not known yet.
local function fetch(members)
    local ids, wanted = {}, {}
    for i = 1, #members do
        local id = sub(members[i], 10)
        if heads[id] == nil then
            ids[#ids + 1] = id
        end
    end
    fetch_heads(ids)
    local asked = {}
    for i = 1, #ids do
        local key = heads[ids[i]] and key_of(heads[ids[i]])
        if key and not keys[key] and not asked[key] then
            asked[key] = true
            wanted[#wanted + 1] = key
        end
    end
    fetch_keys(wanted)
end

local granted, events, marks, seen = {}, {}, {}, {}
local shares, left = {}, 0
for t = 1, takers do
    local limit = tonumber(ARGV[12 + 2 * t])
    shares[t] = { worker = ARGV[11 + 2 * t], left = limit, ids = {}, heads = {}, refused = {} }
    left = left + limit
end
-- Whose turn it is.
local taker = 1
local function take_one(share)
    share.left, left = share.left - 1, left - 1
end
-- By how long they are from now.
local places = {}
local function place_after(milliseconds)
    local found = places[milliseconds]
    if not found then
        found = place_of(now + 1000 * milliseconds)
        places[milliseconds] = found
    end
    return found
end

local function grant(id, h, share)
    local worker = share.worker
    local _, _, _, _, version, fence, attempt, own_visibility, own_timeout = unpack_bytes('>BBBBI8I8I4I4I4', h)
    if own_visibility == 0 then
        own_visibility = visibility
    end
    if own_timeout == 0 then
        own_timeout = timeout
    end
    version, fence, attempt = max(version + 1, now), max(fence + 1, now), attempt + 1
    local after, queue = names_of(h)
    local key_end = after - 1
    if flag(h, 16) then
        key_end = key_end + 32
    end
    local old_worker = unpack_bytes('>I2', h, key_end + 1)
    local new = char(3, state) .. sub(h, 3, 4) .. pack('>I8I8I4', version, fence, attempt) .. sub(h, 25, 32)
        .. place_after(math.min(own_visibility, own_timeout)) .. NONE .. now_place
        .. place_after(own_visibility) .. place_after(own_timeout)
        .. sub(h, 73, key_end) .. pack('>I2', #worker) .. worker .. sub(h, key_end + 3 + old_worker)
    file(id, h, new)
    put_head(id, new)
    count(queue, byte(h, 2), -1)
    count(queue, state, 1)
    local key = key_of(h)
    if key then
        touch_key(key_record(key), version)
    end
    granted[#granted + 1] = id
    share.ids[#share.ids + 1], share.heads[#share.heads + 1] = id, new
    take_one(share)
    marks[#marks + 1] = pack('>I2', taker) .. id .. sub(new, 13, 20)
    events[#events + 1] = event .. id .. pack('>I4I4', attempt, 0) .. sub(h, 81, after - 1)
end

local function look_at(found, queue)
    fetch(found)
    for i = 1, #found do
        while left > 0 and shares[taker].left == 0 do
            taker = taker + 1
        end
        local is_full = left == 0
        if is_full and #granted > 0 then
            break
        end
        local share = shares[taker]
        local id = sub(found[i], 10)
        local h = head_of(id)
        -- A queue may be named twice: what was granted just now is filed elsewhere when all is written.
        if h and byte(h, 1) == 0 then
            local why = why_not(id, h)
            -- Who asks is also told of the first behind those that are shown.
            if is_asked then
                seen[#seen + 1] = pack('>I2', queue) .. char(why or 255) .. found[i] .. sub(h, 73, 80)
            end
            if is_full then
                if why ~= 3 then
                    break
                end
                share.refused[#share.refused + 1] = { id, why }
            elseif why then
                share.refused[#share.refused + 1] = { id, why }
                if why == 3 then
                    take_one(share)
                end
            else
                grant(id, h, share)
            end
        end
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
if #granted > 0 then
    flush(table.concat(events))
    set_mark(ARGV[1], turn, table.concat(marks))
end
return answer_of(shares)
