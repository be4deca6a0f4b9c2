return 1

return KEYS

return {KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]}

return ARGV[2] + 1

return {1, 2.7, -2.7, 'a', true, false, 5, {6, {7}}}

return {1, nil, 3}

return nil

return 3.99

return -0.5

return 'x' .. 10 / 2 .. 1e15 .. 2^53 .. 0.1 .. 1e100 .. -0.0

return {tostring(3.0), tostring(1e14), tostring(123456789012345), tostring(1/3), tostring(nil), tostring(true)}

return redis.call('set', KEYS[1], 'v')

return {redis.call('get', KEYS[1]), redis.call('set', KEYS[1], 0.1), redis.call('get', KEYS[1])}

return redis.call('mget', KEYS[1], KEYS[2])

redis.call('set', KEYS[1], 'v') local t = redis.call('mget', KEYS[1], KEYS[2]) return {t[1], t[2] == false, #t}

redis.call('set', KEYS[1], 12345678901234567890) return redis.call('get', KEYS[1])

redis.call('set', KEYS[1], 1e17) return redis.call('get', KEYS[1])

redis.call('set', KEYS[1], 2^53) return redis.call('get', KEYS[1])

redis.call('set', KEYS[1], 'text') return redis.call('incr', KEYS[1])

redis.call('set', KEYS[1], 'text')

return redis.pcall('incr', KEYS[1])

redis.call('set', KEYS[1], 'text')
local ok, err = pcall(redis.call, 'incr', KEYS[1])
return {tostring(ok), err}

redis.call('set', KEYS[1], 'text')
local r = redis.pcall('incr', KEYS[1])
return {type(r), r.err}

local r = redis.call('set', KEYS[1], 'text') return {type(r), r.ok, r['ok']}

return redis.call('nosuch')

return redis.pcall('nosuch')

return redis.call()

return redis.call('get')

return redis.call({})

return redis.call('ping')

return redis.error_reply('My Err')

return redis.error_reply('CODE')

return redis.error_reply('-CODE x')

return redis.status_reply('fine')

return redis.error_reply(1)

return {ok = 'fine'}

return {err = 'abc def'}

return {err = 'abc', 1, 2}

return redis.sha1hex('')

return redis.sha1hex('abc')

return {type(redis.log), redis.LOG_WARNING, tostring(redis.replicate_commands())}

redis.log(redis.LOG_NOTICE, 'hello') return 1

error('boom')

error({err = 'My err'})

error('boom', 0)

error()

local ok, err = pcall(error, 'x') return err

local ok, err = pcall(error, {a = 1}) return {tostring(ok), err.a}

local ok, err = pcall(function() local x = nil; return x.y end) return err

return {pcall(function(...) return ... end, 1, 2)}

return select(2, xpcall(function() error('x', 0) end, function(e) return e .. 'y' end))

local x = nosuch

x = 1

function f() end

retrn 1

return (

return 'abc

local a a()

local t = {} t.x.y = 1

return 1 < 'x'

return {} .. 'x'

return #nil

string.nosuch()

local t = setmetatable({}, {__index = function(t, k) return k .. '!' end}) return t.abc

local t = setmetatable({}, {__call = function(self, a) return a + 1 end}) return t(4)

local t = setmetatable({}, {__tostring = function() return 'me' end}) return tostring(t)

return {math.floor(-2.5), math.ceil(2.1), math.max(1, 5, 3), math.min(4, 2), math.abs(-3), math.fmod(7, 3), math.huge > 1}

return {tostring(math.pow(2, 10)), tostring(2 ^ 0.5), tostring(math.sqrt(2)), tostring(math.exp(1)), tostring(math.log(10)), tostring(math.log10(1000)), tostring(math.sin(1)), tostring(math.pi)}

math.randomseed(7) return {tostring(math.random()), math.random(1000), math.random(5, 9), tostring(math.random())}

return {string.find('hello world', 'o w'), string.find('hello', 'l+'), string.find('a.b', '.', 1, true), string.find('abc', 'b', -1)}

return {string.find('hello', '(l)(l)'), string.find('hello', '()ll()'), string.find('', ''), string.find('abc', '', 10)}

return {string.find('abc', '', 4)}

return {string.match('key = value', '^(%w+)%s*=%s*(%w+)$'), string.match('2024-01-02', '(%d+)-(%d+)-(%d+)')}

return {string.match('  trim  ', '^%s*(.-)%s*$'), string.match('[[x]]', '%[(%b[])%]'), string.match('THE (quick) fox', '%((%a+)%)')}

return {string.gsub('hello world', 'o', '0'), string.gsub('hello', '', '-'), string.gsub('abc', '%w', '%0%0'), string.gsub('abc', 'b', {b = 'X'}), string.gsub('abc', '.', function(c) if c == 'b' then return 'Y' end end)}

return {string.gsub('hello world', '(%w+) (%w+)', '%2 %1'), string.gsub('abc abc', 'abc', 'x', 1), string.gsub('x^y', '%^', '**')}

local t = {} for k, v in string.gmatch('a=1, b=2', '(%w+)=(%w+)') do t[#t + 1] = k .. v end return t

local t = {} for w in ('one two  three'):gmatch('%S+') do t[#t + 1] = w end return t

return {('THE (quick) fox'):find('%f[%a]%a+%f[%A]', 5)}

return {string.find('a\0b', '%z'), ('x'):rep(3), ('abc'):reverse(), ('abc'):upper(), ('aBc'):lower(), ('abc'):sub(-2), ('abc'):len(), ('abc'):byte(1, -1)}

return {string.match('aXb', '%u'), string.match('hello123', '%a+%d-3'), string.match('[x-y]', '[%]%-x]+'), string.match('a-z', '[a%-z]+'), string.match('}', '[^%w]')}

return string.match('x', '[a')

return string.match('x', '%')

return string.match('x', '(x')

return string.match('x', 'x)')

return string.gsub('x', 'x', '%2')

return string.gsub('x', '(x)', '%1%1')

return {string.format('%d %s %5.2f %x %q %%', 3, 'a', 3.14159, 255, 'q"\n'), string.format('%05d|%-5s|%5s', 42, 'ab', 'cd'), string.format('%g', 1e20)}

return string.format('%d', 'x')

local x = string.rep()

return {table.concat({1, 2, 3}, ','), table.concat({}, 'x'), table.concat({'a', 'b', 'c'}, '-', 2, 3)}

local t = {3, 1, 2} table.sort(t) return t

local t = {3, 1, 2} table.sort(t, function(a, b) return a > b end) return t

local t = {'b', 'a', 'C'} table.sort(t) return t

local t = {1, 'a'} table.sort(t) return t

local t = {1, 2} table.insert(t, 3) table.insert(t, 1, 0) return {t[1], t[2], t[3], t[4], table.remove(t), table.remove(t, 1), #t}

return {unpack({1, 2, 3})}

return {unpack({1, 2, 3}, 2)}

return {select('#', 1, nil, 3), select(2, 'a', 'b', 'c')}

return {tonumber('0x10'), tonumber('10', 2), tonumber('  7  '), tonumber('1e2'), tonumber('abc') == nil, tonumber('')  == nil}

local t = {} for k, v in pairs({a = 1, b = 2, c = 3, 10, 20}) do t[#t + 1] = k .. '=' .. v end return t

local t = {} for i = 1, 20 do t['key' .. i] = i end local o = {} for k in pairs(t) do o[#o + 1] = k end return o

local t = {} for i, v in ipairs({1, 2, nil, 4}) do t[#t + 1] = v end return t

return {next({}) == nil, next({5}), rawget({a = 1}, 'a'), rawequal('a', 'a'), #'abc', type(next)}

local n = 0 for i = 10, 1, -3 do n = n + i end while n > 20 do n = n - 7 end repeat n = n + 1 until n > 30 return n

local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end return fib(15)

local t = {} for i = 1, 3 do t[i] = function() i = i + 1 return i end end return {t[1](), t[1](), t[2]()}

local a <const> = 1

goto x

local s = 0 for _, v in ipairs({5, 6}) do s = s + v end return s % 4 .. ' ' .. -7 % 3 .. ' ' .. 7 % -3

return {1 == 1.0, 'a' < 'b', 'Z' < 'a', not nil, 1 and 2, false or 'x', nil == false}

return [[long
string]] .. [==[ ]] ]==]

return 0x7fffffff + 1

return {cjson.encode({1, 2, {a = 1, b = {}}, 'x"\n/\\\1', 1.5, true, cjson.null}), cjson.encode('a'), cjson.encode(12345678901234)}

return {cjson.encode({a = 1, b = 'x', c = {1, 2}, d = 1e20, e = 0.1}), cjson.encode({[1] = 1, [3] = 3}), cjson.encode({[5] = 1, x = 2})}

return cjson.encode({[1] = 1, [100] = 2})

return cjson.encode({function() end})

return cjson.encode({a = 0/0})

local t = cjson.decode('{"a":[1,2,{"b":null}],"c":"\\u00e9\\ud83d\\ude00\\n","d":1e3,"e":false}') return {t.a[2], tostring(t.a[3].b == cjson.null), t.c, t.d, tostring(t.e)}

return cjson.encode(cjson.decode('{"x":[],"y":{},"z":[{"a":1.25}]}'))

return cjson.decode('[1,')

return cjson.decode('{"a" 1}')

return cjson.decode('')

return cjson.decode('[1] x')

return cjson.decode('nul')

return cjson.decode('{"a":1,}')

return {tostring(pcall(cjson.decode, '{')), cjson.decode('"x"'), cjson.decode(' 5 '), cjson.decode('[-1.5e1]')[1]}

return cmsgpack.pack({1, 2, 3, {a = 'b'}, 'str', true, false, 1.5, -1, 200, 70000, 2^40, -200, -70000})

return cmsgpack.pack(1, 'a', 0.1, 2^31, -2^31, -2^40, ('x'):rep(40), ('y'):rep(300))

local t = cmsgpack.unpack(cmsgpack.pack({1, {x = 'y', z = {true, 2.5}}, -5})) return {t[1], t[2].x, t[2].z[1], tostring(t[2].z[2]), t[3]}

return {cmsgpack.unpack(cmsgpack.pack(1, 'two', {3}))}

return {cmsgpack.unpack_one(cmsgpack.pack(1, 'two', {3}), 1)}

return {cmsgpack.unpack_limit(cmsgpack.pack(1, 'two', {3}), 2)}

return cmsgpack.pack({})

return {bit.band(0xff, 0x0f), bit.bor(1, 2, 4), bit.bxor(5, 1), bit.bnot(0), bit.lshift(1, 31), bit.rshift(-1, 28), bit.arshift(-8, 1), bit.tobit(0xffffffff), bit.rol(1, 33), bit.ror(1, 1), bit.bswap(1), bit.tohex(255), bit.tohex(255, -4), bit.tohex(1, 2)}

return {struct.pack('>I2i4B', 258, -2, 7), struct.size('>I2i4Bd'), struct.unpack('>I2i4B', struct.pack('>I2i4B', 258, -2, 7))}

return {struct.pack('<hHlLsxc3', 1, 2, 3, 4, 'ab', 'xyz'), tostring(select(1, struct.unpack('<d', struct.pack('<d', 1.5)))), struct.unpack('Bc0', struct.pack('Bc0', 3, 'abc'))}

local current = redis.call('incr', KEYS[1]) if current == 1 then redis.call('set', KEYS[2], ARGV[1]) end return {current, redis.call('get', KEYS[2])}
