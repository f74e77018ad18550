-- Everything a decision reads, at one time. ARGV: clock, ahead, floor, then what is wanted: a letter and a name each. Answers the
-- time, what the clock said, and what was found, in that order.
local now, raw = time_of(ARGV[1], ARGV[2], ARGV[3])
local answer = { digits(now), digits(raw) }
for i = 4, #ARGV do
    local kind, name = sub(ARGV[i], 1, 1), sub(ARGV[i], 2)
    local found
    if kind == 'H' then
        found = call('GET', BASE .. 'h' .. name)
    elseif kind == 'K' or kind == 'k' then
        local text = call('GET', BASE .. 'k' .. name)
        found = { text }
        if text then
            local live_end = 12 + 16 * unpack_bytes('>I4', text, 9)
            local last = #text
            -- Ended holders that nobody asks for come along where they are few: who asks next is spared a look.
            if kind == 'k' and last - live_end > 16 * 8 then
                last = live_end
            end
            for from = 13, last, 16 do
                local id = sub(text, from, from + 15)
                found[#found + 1] = { id, call('GET', BASE .. 'h' .. id) }
            end
        end
    elseif kind == 'F' then
        found = {
            call('GET', BASE .. 'h' .. name), call('GET', BASE .. 'b' .. name),
            call('HGETALL', BASE .. 'n' .. name), call('GET', BASE .. 's' .. name),
        }
    elseif kind == 'Q' then
        found = { call('GET', BASE .. 'q' .. name), call('HGETALL', BASE .. 'c' .. name) }
    else
        found = call('GET', BASE .. 'o' .. name)
    end
    answer[i - 1] = found
end
return answer
