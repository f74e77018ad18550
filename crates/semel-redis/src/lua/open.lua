-- What a program says when it connects. ARGV: the layout it knows, a secret if there is none, the run of the server. Answers the
-- layout and the secret. In another run of the server than the last, time begins later than anything that run may have told and
-- forgotten: so no version and no fence is given twice.
local fact = BASE .. '!'
local layout = call('HGET', fact, 'layout')
if not layout then
    if call('EXISTS', fact) == 1 then
        return redis.error_reply('SEMELLAYOUT what is under this prefix is not a store')
    end
    call('HSET', fact, 'layout', ARGV[1], 'secret', ARGV[2], 'run', ARGV[3])
    return { ARGV[1], ARGV[2] }
end
if call('HGET', fact, 'run') ~= ARGV[3] then
    local at = call('HGET', fact, 'at')
    if at then
        call('HSET', fact, 'at', digits(tonumber(at) + 2000000))
    end
    call('HSET', fact, 'run', ARGV[3])
end
return { layout, call('HGET', fact, 'secret') }
