-- Makes the globals of a script out of Lua's own and of `native`, the functions of this crate. Returns a function that
-- runs a script.
local native = ...
local type, error, select, getmetatable, setmetatable = type, error, select, getmetatable, setmetatable
local raw_pcall, raw_xpcall, raw_tostring, raw_rawset = pcall, xpcall, tostring, rawset
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

-- An object's address differs between replicas.
function tostring(...)
    local v = ...
    if select("#", ...) == 0 or PLAIN[type(v)] then return raw_tostring(...) end
    local meta = getmetatable(v)
    if type(meta) == "table" and meta.__tostring then return raw_tostring(v) end
    return type(v) .. ": 0x0"
end

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
    local _, from, to = ...
    from, to = tonumber(from) or 1, tonumber(to)
    if type(t) == "table" then charge(math.max(#t, (to or 0) - from)) end
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
table.sort, table.foreach, table.foreachi = native.sort, nil, nil
getmetatable("").__index = string

bit, cjson, cmsgpack, struct = native.bit, native.cjson, native.cmsgpack, native.struct
for _, name in pairs({
    "collectgarbage", "coroutine", "dofile", "gcinfo", "getfenv", "load", "loadfile", "loadstring", "module",
    "newproxy", "package", "print", "require", "setfenv",
}) do
    _G[name] = nil
end

setmetatable(_G, {
    __index = function(_, name)
        error("Script attempted to access nonexistent global variable '" .. raw_tostring(name) .. "'", 2)
    end,
    __newindex = function() error("Attempt to modify a readonly table", 2) end,
})

local function handler(err)
    err = caught(err)
    if type(err) ~= "table" then err = { err = "ERR " .. tostring(err) } end
    return { err = err.err, line = position() }
end

return function(script)
    return raw_xpcall(function() return script(key) end, handler)
end
