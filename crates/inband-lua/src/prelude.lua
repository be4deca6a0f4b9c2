-- Makes the globals of a script out of Lua's own and of `native`, the functions of this crate. Returns a function that
-- runs a script.
local native = ...
local type, error, select, getmetatable, setmetatable = type, error, select, getmetatable, setmetatable
local raw_pcall, raw_xpcall, raw_tostring, raw_rawset = pcall, xpcall, tostring, rawset
local rawget, tonumber = rawget, tonumber
local charge, caught, position = native.charge, native.caught, native.position

local PLAIN = { string = true, number = true, boolean = true, ["nil"] = true }

-- The place of an object in a table follows from its address, and so would the table's order and size.
local function key(k)
    if PLAIN[type(k)] then return k end
    error("a " .. type(k) .. " cannot be a key of a table in a script: its order would differ between replicas", 2)
end

function rawset(t, k, v)
    return raw_rawset(t, key(k), v)
end

-- An object's address differs between replicas. What `getmetatable` returns may not be the metatable.
local function show(...)
    local v = ...
    if select("#", ...) == 0 or PLAIN[type(v)] then return raw_tostring(...) end
    local method = native.tostring_of(v)
    if method ~= nil then return method(v) end
    return type(v) .. ": 0x0"
end
tostring = show

-- The end of a script by a limit cannot be caught; of the error of a command, scripts get the text.
local function finish(ok, ...)
    if ok then return true, ... end
    local err = caught((...))
    if type(err) == "table" and type(err.err) == "string" then err = err.err end
    return false, err
end

function pcall(...)
    return finish(raw_pcall(...))
end

function xpcall(f, handler)
    return finish(raw_xpcall(f, function(err) return handler(caught(err)) end))
end

redis = {
    call = native.call,
    pcall = native.pcall,
    error_reply = native.error_reply,
    status_reply = native.status_reply,
    sha1hex = native.sha1hex,
    log = function() end,
    setresp = function(version)
        if version ~= 2 then error({ err = "ERR only RESP version 2 is supported in scripts" }, 0) end
    end,
    set_repl = function() end,
    replicate_commands = function() return true end,
    breakpoint = function() return false end,
    debug = function() end,
    LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
    REPL_NONE = 0, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_ALL = 3,
    REDIS_VERSION = "7.0.0", REDIS_VERSION_NUM = 0x00070000,
}

for name, f in pairs(native.string) do string[name] = f end
for name, f in pairs(native.math) do math[name] = f end
string.gfind = string.gmatch
string.dump = nil

-- What takes time by the length of a string counts.
local BYTES_PER_STEP, LONG = 8, 64
local function charge_bytes(n)
    if n > LONG then charge(n / BYTES_PER_STEP) end
end
local function by_length(f)
    return function(...)
        for i = 1, select("#", ...) do
            local v = select(i, ...)
            if type(v) == "string" then charge_bytes(#v) end
        end
        return f(...)
    end
end
for _, name in pairs({ "lower", "reverse", "sub", "upper" }) do string[name] = by_length(string[name]) end
_G.tonumber = by_length(tonumber)

-- What takes time by the length of a table or a string counts as that many steps.
local insert, remove, rep, concat, maxn = table.insert, table.remove, string.rep, table.concat, table.maxn
function table.insert(t, ...)
    if select("#", ...) > 1 and type(t) == "table" then
        charge(#t)
        -- Lua moves all places down to this one.
        local at = tonumber((...))
        if at and at < 1 then error("bad argument #2 to 'insert' (position out of bounds)", 2) end
    end
    return insert(t, ...)
end
function table.remove(t, ...)
    if select("#", ...) > 0 and type(t) == "table" then charge(#t) end
    return remove(t, ...)
end
function table.concat(t, ...)
    if type(t) == "table" then
        local separator, from, to = ...
        from, to = tonumber(from) or 1, tonumber(to) or #t
        local bytes = type(separator) == "string" and #separator * (to - from) or 0
        charge(to - from)
        for i = from, to do
            local v = rawget(t, i)
            if type(v) ~= "string" and type(v) ~= "number" then break end
            bytes = bytes + #raw_tostring(v)
        end
        charge_bytes(bytes)
    end
    return concat(t, ...)
end
function table.maxn(t)
    if type(t) == "table" then for _ in pairs(t) do end end
    return maxn(t)
end
function string.rep(...)
    local _, n = ...
    n = tonumber(n)
    if n and n > 0 then charge(n) end
    return rep(...)
end
table.foreach, table.foreachi = nil, nil

-- In Lua, so that no value of the script is held by mlua, which has room for a few thousand.
local function is_less(a, b)
    local kind, other = type(a), type(b)
    if kind == other and kind == "number" then return a < b end
    if kind == other and kind == "string" then
        charge_bytes(#a < #b and #a or #b)
        return a < b
    end
    if kind == other then error("attempt to compare two " .. kind .. " values", 0) end
    error("attempt to compare " .. kind .. " with " .. other, 0)
end

-- By merging: the time of Lua's own depends on what is sorted.
function table.sort(...)
    local t, less = ...
    if type(t) ~= "table" then error("bad argument #1 to 'sort' (table expected, got " .. type(t) .. ")", 2) end
    if less ~= nil and type(less) ~= "function" then
        error("bad argument #2 to 'sort' (function expected, got " .. type(less) .. ")", 2)
    end
    less = less or is_less
    local n, from, to = #t, {}, {}
    for i = 1, n do from[i] = rawget(t, i) end
    local width = 1
    while width < n do
        for start = 1, n, 2 * width do
            local left, middle = start, start + width
            local right, last = middle, middle + width - 1
            if last > n then last = n end
            for at = start, last do
                if left < middle and (right > last or not less(from[right], from[left])) then
                    to[at], left = from[left], left + 1
                else
                    to[at], right = from[right], right + 1
                end
            end
        end
        from, to = to, from
        width = 2 * width
    end
    for i = 1, n do raw_rawset(t, i, from[i]) end
end
getmetatable("").__index = string

bit, cjson, cmsgpack, struct = native.bit, native.cjson, native.cmsgpack, native.struct
-- mlua cannot hold many more values.
local VALUES_MAX, raw_unpack = 7000, unpack
local function unpack(...)
    local t, first, last = ...
    if type(t) == "table" then
        local n = (tonumber(last) or #t) - (tonumber(first) or 1) + 1
        if n > VALUES_MAX then error("too many results to unpack", 2) end
        if n > 0 then charge(n) end
    end
    return raw_unpack(...)
end
_G.unpack = unpack
for _, library in pairs({ cmsgpack, struct }) do
    for _, name in pairs({ "unpack", "unpack_one", "unpack_limit" }) do
        local f = library[name]
        if f then library[name] = function(...) return unpack(f(...)) end end
    end
end
for _, name in pairs({
    "collectgarbage", "coroutine", "dofile", "gcinfo", "getfenv", "load", "loadfile", "loadstring", "module",
    "newproxy", "package", "print", "require", "setfenv",
}) do
    _G[name] = nil
end

setmetatable(_G, {
    __index = function(_, name)
        error("Script attempted to access nonexistent global variable '" .. show(name) .. "'", 2)
    end,
    __newindex = function() error("Attempt to modify a readonly table", 2) end,
})

local function handler(err)
    err = caught(err)
    if type(err) ~= "table" then err = { err = "ERR " .. show(err) } end
    return { err = err.err, line = position() }
end

return function(script)
    return raw_xpcall(function() return script(key) end, handler)
end
