-- Everything a decision reads, at one time. ARGV: clock, ahead, floor, then what is wanted: a letter and a name each. Answers the
-- time, what the clock said, and what was found, in that order.
local now, raw = time_of(ARGV[1], ARGV[2], ARGV[3])
local answer = { digits(now), digits(raw) }

-- What is wanted of each kind, and where in the answer it belongs.
local wanted = { H = {}, K = {}, F = {} }
local places = { H = {}, K = {}, F = {} }
-- Keys of which ended holders are wanted, however many there are.
local with_ended = {}
for i = 4, #ARGV do
    local kind, name = sub(ARGV[i], 1, 1), sub(ARGV[i], 2)
    if kind == 'Q' then
        answer[i - 1] = { call('GET', BASE .. 'q' .. name), call('HGETALL', BASE .. 'c' .. name) }
    elseif kind == 'O' then
        answer[i - 1] = call('GET', BASE .. 'o' .. name)
    else
        if kind == 'k' then
            kind = 'K'
        elseif kind == 'K' then
            with_ended[name] = true
        end
        local list = wanted[kind]
        list[#list + 1], places[kind][#list + 1] = name, i - 1
    end
end

local heads = get_all('h', wanted.H)
for i = 1, #heads do
    answer[places.H[i]] = heads[i]
end

-- Each key's record, with its holders behind it.
local records = get_all('k', wanted.K)
local holders, of = {}, {}
for i = 1, #records do
    local text = records[i]
    local found = { text }
    answer[places.K[i]] = found
    if text then
        local live_end = 12 + 16 * unpack_bytes('>I4', text, 9)
        local last = #text
        -- Ended holders that nobody asks for come along where they are few: who asks next is spared a look.
        if not with_ended[wanted.K[i]] and last - live_end > 16 * 8 then
            last = live_end
        end
        for from = 13, last, 16 do
            holders[#holders + 1], of[#of + 1] = sub(text, from, from + 15), found
        end
    end
end
local found = get_all('h', holders)
for i = 1, #holders do
    local list = of[i]
    list[#list + 1] = { holders[i], found[i] }
end

local ids = wanted.F
if #ids > 0 then
    local whole, bodies, spent = get_all('h', ids), get_all('b', ids), get_all('s', ids)
    local notes = notes_of_all(ids)
    for i = 1, #ids do
        answer[places.F[i]] = { whole[i], bodies[i], notes[i], spent[i] }
    end
end
return answer
