-- Answers questions of people and of background duties. ARGV: clock, ahead, floor, what is asked, and its parameters. Answers
-- the time, what the clock said, and what was found.
local now, raw = time_of(ARGV[1], ARGV[2], ARGV[3])
if not now then
    return raw
end
local what = ARGV[4]
local found = {}

local function documents(names)
    for i = 1, #names do
        local text = call('GET', BASE .. 'o' .. names[i])
        if text then
            found[#found + 1] = { names[i], text }
        end
    end
end

-- The earliest place in a set of ready jobs, or `best` if that is earlier. The first job of each priority is its oldest.
local function oldest(set, best)
    local first = call('ZRANGE', set, 0, 0)[1]
    while first do
        local at = sub(first, 2, 9)
        if best == '' or is_before(at, best) then
            best = at
        end
        if byte(first) == 255 then
            break
        end
        first = call('ZRANGE', set, '[' .. char(byte(first) + 1), '+', 'BYLEX', 'LIMIT', 0, 1)[1]
    end
    return best
end

if what == 'due' then
    found = call('ZRANGE', BASE .. ARGV[5], 0, tonumber(ARGV[6]))
elseif what == 'documents due' then
    local members = call('ZRANGE', BASE .. 'u', 0, tonumber(ARGV[5]))
    for i = 1, #members do
        members[i] = sub(members[i], 9)
    end
    documents(members)
elseif what == 'documents' then
    -- ARGV: the kind; `up` or `down`; the name to begin after, or none; how many.
    local set, names = BASE .. 'v' .. ARGV[5], nil
    if ARGV[6] == 'down' then
        local from = ARGV[7] == '' and '+' or '(' .. ARGV[7]
        names = call('ZRANGE', set, from, '-', 'BYLEX', 'REV', 'LIMIT', 0, ARGV[8])
    else
        local from = ARGV[7] == '' and '-' or '(' .. ARGV[7]
        names = call('ZRANGE', set, from, '+', 'BYLEX', 'LIMIT', 0, ARGV[8])
    end
    for i = 1, #names do
        names[i] = ARGV[5] .. names[i]
    end
    documents(names)
elseif what == 'queues' then
    -- ARGV: a cursor of Redis, and about how many names to scan. Queues are read in pages because callers choose their names,
    -- and may have one for each of their customers.
    -- How many limits of each queue are looked through.
    local LIMITS = 100
    local page = call('SSCAN', BASE .. 'w', ARGV[5], 'COUNT', ARGV[6])
    local names, queues = page[2], {}
    for i = 1, #names do
        local name = names[i]
        local at = oldest(BASE .. 'r' .. name, '')
        -- Callers may name any number of limits, and Redis serves nobody else meanwhile. So only the limits whose first jobs come
        -- first are looked through; of the others only each one's first job is seen, whose place is the same in the set `i`.
        local firsts = call('ZRANGE', BASE .. 'i' .. name, 0, LIMITS - 1)
        for f = 1, #firsts do
            at = oldest(BASE .. 'l' .. name .. sub(firsts[f], -8), at)
        end
        if #firsts == LIMITS then
            at = oldest(BASE .. 'i' .. name, at)
        end
        queues[i] = { name, call('GET', BASE .. 'q' .. name), call('HGETALL', BASE .. 'c' .. name), at }
    end
    found = { page[1], queues }
elseif what == 'settings' then
    local names = call('SMEMBERS', BASE .. 'g')
    local rows = get_all('q', names)
    for i = 1, #names do
        found[i] = { names[i], rows[i] }
    end
elseif what == 'jobs' then
    -- ARGV: the set, the id to begin below, or none, how many.
    local from = ARGV[6] == '' and '+' or '(' .. ARGV[6]
    local ids = call('ZRANGE', BASE .. ARGV[5], from, '-', 'BYLEX', 'REV', 'LIMIT', 0, ARGV[7])
    for i = 1, #ids do
        found[i] = { ids[i], call('GET', BASE .. 'h' .. ids[i]) }
    end
elseif what == 'kept' then
    -- ARGV: the member to begin after, or none, how many. Answers heads that are kept for their keys alone, by until when.
    local from = ARGV[5] == '' and '-' or '(' .. ARGV[5]
    local members = call('ZRANGE', BASE .. 'f', from, '+', 'BYLEX', 'LIMIT', 0, ARGV[6])
    for i = 1, #members do
        found[i] = { members[i], call('GET', BASE .. 'h' .. sub(members[i], 9)) }
    end
elseif what == 'rows' then
    -- ARGV: a cursor of Redis, and about how many keys to scan. Answers the rows found: of queues, and of what is not a queue.
    local page = call('SCAN', ARGV[5], 'MATCH', BASE .. 'q*', 'COUNT', ARGV[6])
    local rows, names = {}, page[2]
    for i = 1, #names do
        rows[i] = { sub(names[i], #BASE + 2), call('GET', names[i]) }
    end
    found = { page[1], rows }
elseif what == 'events' then
    -- ARGV: the record to begin with, how many. First come the numbers of the newest record and of the last one dropped.
    local fact = call('HMGET', BASE .. '!', 'records', 'dropped')
    found = { { fact[1] or '0', fact[2] or '0' }, call('XRANGE', BASE .. 'e', ARGV[5], '+', 'COUNT', ARGV[6]) }
elseif what == 'all events' then
    -- The same from the log of all partitions.
    local fact = call('HMGET', BASE .. '!', 'log', 'logdropped')
    found = { { fact[1] or '0', fact[2] or '0' }, call('XRANGE', BASE .. 'E', ARGV[5], '+', 'COUNT', ARGV[6]) }
elseif what == 'gathered' then
    -- ARGV: the number of partitions. Answers for each of them the last of its records that the log of all partitions has.
    local names = {}
    for i = 1, tonumber(ARGV[5]) do
        names[i] = 'f' .. digits(i - 1)
    end
    local numbers = call('HMGET', BASE .. '!', unpack(names))
    for i = 1, #names do
        found[i] = numbers[i] or '0'
    end
elseif what == 'forwards' then
    -- ARGV: the id to begin after, or none, how many. Answers ids that lead to another partition, and where.
    local from = ARGV[5] == '' and '-' or '(' .. ARGV[5]
    local ids = call('ZRANGE', BASE .. 'P', from, '+', 'BYLEX', 'LIMIT', 0, ARGV[6])
    local forwards = get_all('p', ids)
    for i = 1, #ids do
        found[i] = { ids[i], forwards[i] }
    end
elseif what == 'known' then
    -- ARGV: ids. Answers the highest version of a job that is gone, and for each id whether it is a job's or was absorbed.
    local refused = refusal()
    if refused then
        return refused
    end
    local ids = {}
    for i = 5, #ARGV do
        ids[#ids + 1] = ARGV[i]
    end
    local heads, spent = get_all('h', ids), get_all('s', ids)
    found[1] = digits(GONE)
    for i = 1, #ids do
        found[i + 1] = (heads[i] or spent[i]) and 1 or 0
    end
end
return { digits(now), digits(raw), found }
