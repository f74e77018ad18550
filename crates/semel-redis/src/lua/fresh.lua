-- New jobs that nothing else in their commit concerns. They come ready-made: their records with full names, and where they are
-- filed. A job is put down if none of its records exists, neither its id's nor its key's: then everything is as it was when the
-- job was decided on.

-- How many jobs are put down by one call: the arguments of a call are bounded.
local PIECE = 300

-- Puts down `jobs` jobs, whose arguments begin at `from`, `width` for each. Appends to `refused` the numbers of those that
-- could not be put down; the first job has the number `first`.
local function put_down(from, jobs, width, first, refused)
    for piece = 0, jobs - 1, PIECE do
        local n = math.min(PIECE, jobs - piece)
        local at = from + piece * width
        if call('MSETNX', unpack(ARGV, at, at + n * width - 1)) == 0 then
            for i = piece, piece + n - 1 do
                if call('MSETNX', unpack(ARGV, at, at + width - 1)) == 0 then
                    refused[#refused + 1] = first + i
                end
                at = at + width
            end
        end
    end
end

-- Files the jobs that were put down, one by one; for when not all of them were.
local function file_others(from, jobs, width, first, is_refused)
    for i = 0, jobs - 1 do
        if not is_refused[first + i] then
            local id, h = sub(ARGV[from + i * width], #BASE + 2), ARGV[from + i * width + 1]
            local _, queue = names_of(h)
            file(id, nil, h, place)
            place('j', id, true)
            count(queue, byte(h, 2), 1)
            count(queue, 'c', 1)
        end
    end
end

-- The index of the first argument after those of the new jobs, which begin at `at`.
local function behind_fresh(at, keyed, keyless, sets, queues)
    at = at + 6 * keyed + 4 * keyless
    for _ = 1, sets do
        at = at + 2 + 2 * tonumber(ARGV[at + 1])
    end
    return at + 3 * queues
end

-- Puts down and files the new jobs whose arguments begin at `at`: the jobs with a key, and those without one; then the sorted
-- sets to file them in (the set's name, how many members, for each a score and the member); then how many jobs each queue gains
-- (its name, a state, how many). Answers the numbers of the refused jobs. It writes as it goes, so anything that may fail must
-- come before it.
local function put_fresh(at, keyed, keyless, sets, queues)
    local refused, is_refused, second = {}, {}, at + 6 * keyed
    put_down(at, keyed, 6, 1, refused)
    put_down(second, keyless, 4, keyed + 1, refused)
    if #refused > 0 then
        for i = 1, #refused do
            is_refused[refused[i]] = true
        end
        file_others(at, keyed, 6, 1, is_refused)
        file_others(second, keyless, 4, keyed + 1, is_refused)
    end
    at = second + 4 * keyless
    for _ = 1, sets do
        local last = at + 1 + 2 * tonumber(ARGV[at + 1])
        if #refused == 0 then
            for piece = at + 2, last, 2000 do
                call('ZADD', ARGV[at], unpack(ARGV, piece, math.min(piece + 1999, last)))
            end
        end
        at = last + 1
    end
    for _ = 1, queues do
        if #refused == 0 then
            local queue, n = ARGV[at], tonumber(ARGV[at + 2])
            count(queue, tonumber(ARGV[at + 1]), n)
            count(queue, 'c', n)
        end
        at = at + 3
    end
    return refused
end
