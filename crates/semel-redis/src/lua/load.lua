-- Reads everything that a decision needs, as of one moment. ARGV: clock, ahead, floor, how many names of each kind follow, a
-- letter for each key saying whether all its ended holders are wanted (K) or only a few (k); the full names of the records of
-- heads and of keys; the ids of whole jobs, the names of queues and of documents; in a divided store also ids. Answers the
-- time, what the clock said, the heads, the keys' records, the heads of the holders in one list, in the order of those records,
-- then an answer for each of the others.
local now, raw = time_of(ARGV[1], ARGV[2], ARGV[3])
if not now then
    return raw
end
local refused = refusal()
if refused then
    return refused
end
local heads, keys, fulls, queues, documents = unpack_bytes('>I4I4I4I4I4', ARGV[4])
local after_heads = 6 + heads
local records = get_named(ARGV, after_heads, after_heads + keys - 1)

-- The record names of all holders' heads. The server parses the keys' records by the same rule, and expects as many heads as
-- are named here.
local holders, head_name = {}, BASE .. 'h'
for i = 1, keys do
    local text = records[i]
    if text then
        local last = #text
        if last > 28 then
            local live_end = 12 + 16 * unpack_bytes('>I4', text, 9)
            -- Where a key has few ended holders they are answered even if not asked for: that spares the next caller a read.
            if last - live_end > 16 * 8 and byte(ARGV[5], i) ~= 75 then
                last = live_end
            end
        end
        for from = 13, last, 16 do
            holders[#holders + 1] = head_name .. sub(text, from, from + 15)
        end
    end
end
local answer = {
    digits(now),
    digits(raw),
    get_named(ARGV, 6, after_heads - 1),
    records,
    get_named(holders, 1, #holders),
}

local at = after_heads + keys
if fulls > 0 then
    local ids = {}
    for i = 1, fulls do
        ids[i] = ARGV[at + i - 1]
    end
    local whole, bodies, spent = get_all('h', ids), get_all('b', ids), get_all('s', ids)
    local notes = notes_of_all(ids)
    for i = 1, fulls do
        answer[#answer + 1] = { whole[i], bodies[i], notes[i], spent[i] }
    end
end
at = at + fulls
for i = at, at + queues - 1 do
    answer[#answer + 1] = { call('GET', BASE .. 'q' .. ARGV[i]), call('HGETALL', BASE .. 'c' .. ARGV[i]) }
end
at = at + queues
for i = at, at + documents - 1 do
    answer[#answer + 1] = call('GET', BASE .. 'o' .. ARGV[i])
end
if PARTITIONS then
    -- Where the ids at the end of ARGV lead, and which commit this partition last shared with each other partition.
    local ids = {}
    for i = at + documents, #ARGV do
        ids[#ids + 1] = ARGV[i]
    end
    answer[#answer + 1] = get_all('p', ids)
    answer[#answer + 1] = call('HGET', BASE .. '!', 'pairs')
end
return answer
