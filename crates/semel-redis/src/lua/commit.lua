-- Applies groups of writes in order, each entirely or not at all. A group whose records have changed since it was decided is
-- stale and changes nothing; so is a group that relies on what a stale group would have written.
-- ARGV: mark, turn, clock, ahead, floor; how many there are of each thing that follows; the numbers in the batch of each new
-- job's group and then of each other group; the ids and the keys that the other groups concern (each list concatenated);
-- versions before the batch (key, version); the new jobs (`fresh.lua`); the events of all groups, in the order of the batch;
-- then for each other group how many expectations and writes it has, and these. Answers the time, a letter for each group of
-- the batch (a: applied, s: stale), and the keys whose ended holders should be looked over.
local turn = tonumber(ARGV[2])
local now, emptied = time_of(ARGV[3], ARGV[4], ARGV[5])
if not now then
    return emptied
end
-- A part of a commit over several partitions has the mark `x`, and that commit's number as its turn. It is already decided, and
-- the lock has let nobody write since: a group can only be stale here if Redis has lost writes.
local is_crossing = ARGV[1] == 'x'
local said, refused
if not is_crossing then
    said, refused = mark_of(ARGV[1], turn)
    refused = refused or (not said and refusal())
else
    -- What was decided must be told.
    insist()
end
if is_crossing and LOCK ~= ARGV[2] then
    -- Nothing is left to be written, but the caller relies on this answer: replicas must confirm that this Redis is still the
    -- primary.
    nudge()
    if tonumber(call('HGET', BASE .. '!', 'crossed') or 0) >= turn then
        said = ''
    else
        refused = redis.error_reply('SEMELOLD this commit was given up')
    end
end
if refused then
    return refused
end
if said then
    return { digits(now), said }
end
begin_writes(now)

local function cut(text, size)
    local parts = {}
    for from = 1, #text, size do
        parts[#parts + 1] = sub(text, from, from + size - 1)
    end
    return parts
end
local began, keyed, keyless, sets, queues, others = unpack_bytes('>I4I4I4I4I4I4', ARGV[6])
local fresh = keyed + keyless

-- Which groups of the batch are stale.
local stale, is_any_stale = {}, false
local function note_stale(n)
    stale[unpack_bytes('>I4', ARGV[7], 4 * n - 3)] = true
    is_any_stale = true
end

local events_at = behind_fresh(10 + began, keyed, keyless, sets, queues)
fetch_heads(cut(ARGV[8], 16))
fetch_keys(cut(ARGV[9], 32))

local function version_of(kind, name, is_none)
    if kind == 'K' then
        return pack('>I8', key_record(name).version)
    elseif kind == 'J' then
        local h = head_of(name)
        if h then
            if is_none and byte(h, 1) == KEPT then
                return NONE
            end
            return sub(h, @AT_VERSION)
        end
        if call('EXISTS', BASE .. 's' .. name) == 1 then
            return '\0\0\0\0\0\0\0\1'
        end
        if PARTITIONS and call('EXISTS', BASE .. 'p' .. name) == 1 then
            -- The id leads to another partition. The version there is not known here, so no expectation is met.
            return ''
        end
        return NONE
    elseif kind == 'Q' then
        local row = call('GETRANGE', BASE .. 'q' .. name, 0, 7)
        return row ~= '' and row or NONE
    end
    local document = call('GETRANGE', BASE .. 'o' .. name, 0, 7)
    return document ~= '' and document or NONE
end

local unwritten, is_any_unwritten = {}, false
local function note(record)
    unwritten[record] = true
    is_any_unwritten = true
end

for i = 10, 9 + began do
    local key = sub(ARGV[i], 1, 32)
    if pack('>I8', key_record(key).version) ~= sub(ARGV[i], 33) then
        note('K' .. key)
    end
end

-- How many arguments follow the first one of each write.
local FOLLOW = { I = 2, i = 2, U = 1, u = 1, N = 1, M = 0, S = 0, R = 0, F = 0, Q = 1, q = 1, O = 1, P = 0, p = 0 }

local function note_write(op, text, from)
    if op == 'Q' or op == 'O' then
        note(text)
        return
    elseif op == 'q' then
        note('Q' .. sub(text, 2))
        return
    end
    note('J' .. sub(text, 2, 17))
    if op == 'S' then
        note('J' .. sub(text, 18, 33))
    elseif FOLLOW[op] > 0 and op ~= 'N' then
        local key = key_of(ARGV[from])
        if key then
            note('K' .. key)
        end
    end
end

local function is_current(first, last, writes_from, writes)
    for i = first, last do
        local expect = ARGV[i]
        local kind = sub(expect, 1, 1)
        local name = sub(expect, 11)
        if is_any_unwritten and unwritten[kind .. name] then
            return false
        end
        if version_of(kind, name, byte(expect, 10) == 1) ~= sub(expect, 2, 9) then
            return false
        end
    end
    local from = writes_from
    for _ = 1, writes do
        local op = sub(ARGV[from], 1, 1)
        if op == 'I' then
            if head_of(sub(ARGV[from], 2)) then
                return false
            end
        elseif op == 'i' and number(ARGV[from + 1], 5) <= GONE then
            -- Decided before an earlier job with that id was gone, the new job could repeat that one's version.
            return false
        end
        from = from + 1 + FOLLOW[op]
    end
    return true
end

local function put_document(name, text)
    local before = call('GET', BASE .. 'o' .. name)
    if before and sub(before, 9, 16) ~= NONE then
        place('u', sub(before, 9, 16) .. name, false)
    end
    if text == '' then
        call('DEL', BASE .. 'o' .. name)
        place('v' .. sub(name, 1, 1), sub(name, 2), false)
        return
    end
    call('SET', BASE .. 'o' .. name, text)
    place('v' .. sub(name, 1, 1), sub(name, 2), true)
    if sub(text, 9, 16) ~= NONE then
        place('u', sub(text, 9, 16) .. name, true)
    end
end

local function write(op, text, from)
    local id = sub(text, 2, 17)
    if op == 'I' or op == 'i' then
        insert(id, ARGV[from], ARGV[from + 1])
    elseif op == 'U' or op == 'u' then
        update(id, ARGV[from], sub(text, 18, 25), op == 'u')
    elseif op == 'N' or op == 'M' then
        local h = head_of(id)
        if h and byte(h, 1) ~= KEPT then
            if op == 'N' then
                call('HSET', BASE .. 'n' .. id, sub(text, 18), ARGV[from])
            else
                call('HDEL', BASE .. 'n' .. id, sub(text, 18))
            end
        end
    elseif op == 'S' then
        local job = sub(text, 18, 33)
        call('SET', BASE .. 's' .. id, sub(text, 18))
        call('SADD', BASE .. 'y' .. job, id)
    elseif op == 'R' then
        local spent = call('GET', BASE .. 's' .. id)
        if spent then
            call('SREM', BASE .. 'y' .. sub(spent, 1, 16), id)
            call('DEL', BASE .. 's' .. id)
        end
    elseif op == 'F' then
        forget(id, sub(text, 18, 25))
    elseif op == 'q' then
        call('SET', BASE .. 'q' .. sub(text, 2), ARGV[from])
    elseif op == 'Q' then
        local name = sub(text, 2)
        call('SET', BASE .. 'q' .. name, ARGV[from])
        call('SADD', BASE .. 'w', name)
        -- The queues that have settings: every server asks for them every second.
        call(byte(ARGV[from], 10) == 1 and 'SADD' or 'SREM', BASE .. 'g', name)
    elseif op == 'O' then
        put_document(sub(text, 2), ARGV[from])
    elseif op == 'P' then
        -- Where the id leads, and the number of the commit that led it there.
        call('SET', BASE .. 'p' .. id, sub(text, 18, 19) .. pack('>I8', turn))
        place('P', id, true)
    elseif op == 'p' then
        call('DEL', BASE .. 'p' .. id)
        place('P', id, false)
    end
end

local is_any_applied = false
local at = events_at + fresh + others
for n = fresh + 1, fresh + others do
    local expects, writes = unpack_bytes('>I4I4', ARGV[at])
    local first = at + 1
    local writes_from = first + expects
    local is_applied = is_current(first, writes_from - 1, writes_from, writes)
    at = writes_from
    for _ = 1, writes do
        local op = sub(ARGV[at], 1, 1)
        if is_applied then
            write(op, ARGV[at], at + 1)
        else
            note_write(op, ARGV[at], at + 1)
        end
        at = at + 1 + FOLLOW[op]
    end
    if is_applied then
        -- A group without writes was only checked, and leaves nothing behind, not even a mark: if asked again, it is checked again.
        is_any_applied = is_any_applied or writes > 0
    else
        for i = first, writes_from - 1 do
            note(sub(ARGV[i], 1, 1) .. sub(ARGV[i], 11))
        end
        note_stale(n)
    end
end

-- After everything that may find a record it cannot read, because the new jobs are written at once, not gathered.
local refused_jobs = put_fresh(10 + began, keyed, keyless, sets, queues)
for i = 1, #refused_jobs do
    note_stale(refused_jobs[i])
end
is_any_applied = is_any_applied or fresh > #refused_jobs
local events
if is_any_stale then
    local verdicts, told = {}, {}
    for i = 1, fresh + others do
        verdicts[i] = stale[i] and 's' or 'a'
        told[i] = stale[i] and '' or ARGV[events_at + i - 1]
    end
    said, events = table.concat(verdicts), table.concat(told)
else
    said, events = string.rep('a', fresh + others), table.concat(ARGV, '', events_at, events_at + fresh + others - 1)
end
if is_any_applied then
    flush(events)
    if not is_crossing then
        set_mark(ARGV[1], turn, said)
    end
end
if is_crossing then
    end_crossing(turn)
end
if not is_any_applied then
    return { digits(now), said }
end
local answer = { digits(now), said }
for key in pairs(crowded) do
    answer[#answer + 1] = key
end
return answer
