//! `bit`: operations on 32-bit numbers, as in LuaBitOp.

use mlua::{Lua, Table, Variadic};

/// The number modulo 2^32.
fn bits(number: f64) -> u32 {
    libm::rint(number) as i64 as u32
}

/// Results are signed.
fn signed(bits: u32) -> f64 {
    f64::from(bits as i32)
}

type OfOne = fn(u32) -> u32;
type OfTwo = fn(u32, u32) -> u32;

pub fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let of_one: [(&str, OfOne); 3] = [
        ("tobit", |a| a),
        ("bnot", |a| !a),
        ("bswap", u32::swap_bytes),
    ];
    for (name, f) in of_one {
        table.set(
            name,
            lua.create_function(move |_, a: f64| Ok(signed(f(bits(a)))))?,
        )?;
    }
    let of_many: [(&str, OfTwo); 3] = [
        ("band", |a, b| a & b),
        ("bor", |a, b| a | b),
        ("bxor", |a, b| a ^ b),
    ];
    for (name, f) in of_many {
        let function = lua.create_function(move |_, (first, more): (f64, Variadic<f64>)| {
            Ok(signed(
                more.iter()
                    .fold(bits(first), |all, next| f(all, bits(*next))),
            ))
        })?;
        table.set(name, function)?;
    }
    let shifts: [(&str, OfTwo); 5] = [
        ("lshift", |a, by| a << by),
        ("rshift", |a, by| a >> by),
        ("arshift", |a, by| (a as i32 >> by) as u32),
        ("rol", u32::rotate_left),
        ("ror", u32::rotate_right),
    ];
    for (name, f) in shifts {
        let function = lua
            .create_function(move |_, (a, by): (f64, f64)| Ok(signed(f(bits(a), bits(by) & 31))))?;
        table.set(name, function)?;
    }
    let tohex = lua.create_function(|_, (number, digits): (f64, Option<f64>)| {
        let digits = digits.map_or(8, |digits| digits.clamp(-8.0, 8.0) as i32);
        let hex = format!("{:08x}", bits(number));
        let hex = hex[8 - digits.unsigned_abs() as usize..].to_owned();
        Ok(if digits < 0 { hex.to_uppercase() } else { hex })
    })?;
    table.set("tohex", tohex)?;
    Ok(table)
}
