//! The functions of `math` whose results in C depend on the library and the processor, and the generator of
//! Redis for `math.random`: every script sees the same sequence.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Lua, Table, Variadic};

use crate::fail;

/// Low word of the state after seeding, as in `srand48`.
const SEED_LOW: u64 = 0x330e;
const MULTIPLIER: u64 = 0x5deece66d;
const INCREMENT: u64 = 0xb;
const MASK: u64 = (1 << 48) - 1;
/// Bits of a random number that `lrand48` drops.
const DROPPED_BITS: u32 = 17;
/// Largest number of `lrand48`.
const RANDOM_MAX: f64 = 2_147_483_647.0;

type OfOne = fn(f64) -> f64;
type OfTwo = fn(f64, f64) -> f64;

pub fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let of_one: [(&str, OfOne); 12] = [
        ("sin", libm::sin),
        ("cos", libm::cos),
        ("tan", libm::tan),
        ("asin", libm::asin),
        ("acos", libm::acos),
        ("atan", libm::atan),
        ("sinh", libm::sinh),
        ("cosh", libm::cosh),
        ("tanh", libm::tanh),
        ("exp", libm::exp),
        ("log", libm::log),
        ("log10", libm::log10),
    ];
    for (name, function) in of_one {
        table.set(name, lua.create_function(move |_, x: f64| Ok(function(x)))?)?;
    }
    let of_two: [(&str, OfTwo); 2] = [("atan2", libm::atan2), ("pow", libm::pow)];
    for (name, function) in of_two {
        let function = lua.create_function(move |_, (x, y): (f64, f64)| Ok(function(x, y)))?;
        table.set(name, function)?;
    }
    let state = Rc::new(Cell::new(SEED_LOW));
    let own = state.clone();
    let seed = lua.create_function(move |_, seed: f64| {
        own.set((seed as i64 as u64 & 0xffff_ffff) << 16 | SEED_LOW);
        Ok(())
    })?;
    table.set("randomseed", seed)?;
    let random = lua.create_function(move |lua, bounds: Variadic<f64>| {
        let next = (state.get().wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT)) & MASK;
        state.set(next);
        let number = next >> DROPPED_BITS;
        let fraction = (number % RANDOM_MAX as u64) as f64 / RANDOM_MAX;
        let (low, high) = match bounds[..] {
            [] => return Ok(fraction),
            [high] => (1.0, high),
            [low, high] => (low, high),
            _ => return Err(fail(lua, "wrong number of arguments")),
        };
        let (low, high) = (low.trunc(), high.trunc());
        if low > high {
            let at = bounds.len();
            let why = format!("bad argument #{at} to 'random' (interval is empty)");
            return Err(fail(lua, why));
        }
        Ok((fraction * (high - low + 1.0)).floor() + low)
    })?;
    table.set("random", random)?;
    Ok(table)
}
