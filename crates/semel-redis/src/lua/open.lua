-- What a program says when it connects. ARGV: the layout it knows, a secret if there is none, the run of the server. Answers the
-- layout and the secret. In another run of the server than the last, time begins later than anything that run may have told and
-- forgotten: so no version and no fence is given twice.
local fact = BASE .. '!'
-- What an account may not do is refused when it is done, in the middle of a script: so it is asked beforehand.
local WRITES = {
    { 'SET', fact, '' }, { 'MSET', fact, '' }, { 'DEL', fact }, { 'UNLINK', fact },
    { 'HSET', fact, 'at', '' }, { 'HDEL', fact, 'at' }, { 'HINCRBY', fact, 'at', '1' },
    { 'SADD', fact, '' }, { 'SREM', fact, '' }, { 'ZADD', fact, '0', '' }, { 'ZREM', fact, '' },
    { 'XADD', fact, '*', 'a', '' }, { 'XTRIM', fact, 'MINID', '0' },
}
for at = 1, #WRITES do
    if not redis.acl_check_cmd(unpack(WRITES[at])) then
        return redis.error_reply('SEMELACL the account may not use ' .. WRITES[at][1] .. ' here: let it write under this prefix')
    end
end
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
        local later = digits(tonumber(at) + LEAD)
        -- Time stands there until the clock has come to it: it is no clock that has jumped back.
        call('HSET', fact, 'at', later, 'lead', later)
    end
    call('HSET', fact, 'run', ARGV[3])
end
return { layout, call('HGET', fact, 'secret') }
