//! Commands for collections that have an operation of their own.

use bytes::{BufMut, BytesMut};

use super::{place, put_signed, put_string, put_strings, put_varint, Reader};
use crate::command::{Command, Strings};
use crate::types::{Combine, Kind, MultiPop, Sample};

pub(super) fn put_multi_pop(
    out: &mut BytesMut,
    pop: &MultiPop,
    keys: &Strings<'_>,
    timeout: Option<&[u8]>,
) {
    out.put_u8(pop.kind as u8);
    out.put_u8(u8::from(pop.from_end));
    put_varint(out, pop.count);
    out.put_u8(u8::from(timeout.is_some()));
    timeout.into_iter().for_each(|text| put_string(out, text));
    put_strings(out, keys);
}

pub(super) fn put_combine(
    out: &mut BytesMut,
    op: Combine,
    target: &[u8],
    keys: &Strings<'_>,
    options: &Strings<'_>,
) {
    out.put_u8(place(&Combine::ALL, &op));
    put_string(out, target);
    put_strings(out, keys);
    put_strings(out, options);
}

pub(super) fn put_sample(out: &mut BytesMut, sample: &Sample, key: &[u8]) {
    out.put_u8(sample.kind as u8);
    out.put_u8(u8::from(sample.with_values));
    out.put_u8(u8::from(sample.count.is_some()));
    put_signed(out, sample.count.unwrap_or(0));
    put_varint(out, sample.seed);
    put_string(out, key);
}

impl<'a> Reader<'a> {
    pub(super) fn multi_pop(&mut self) -> Option<Command<'a>> {
        let pop = MultiPop {
            kind: Kind::of_byte(self.byte()?)?,
            from_end: self.choice(&[false, true])?,
            count: self.varint()?,
        };
        let timeout = match self.choice(&[false, true])? {
            true => Some(self.string()?),
            false => None,
        };
        let keys = self.strings()?;
        Some(Command::MultiPop { pop, keys, timeout })
    }

    pub(super) fn combine(&mut self) -> Option<Command<'a>> {
        Some(Command::Combine {
            op: self.choice(&Combine::ALL)?,
            target: self.string()?,
            keys: self.strings()?,
            options: self.strings()?,
        })
    }

    pub(super) fn sample(&mut self) -> Option<Command<'a>> {
        let kind = Kind::of_byte(self.byte()?)?;
        let with_values = self.choice(&[false, true])?;
        let has_count = self.choice(&[false, true])?;
        let count = self.signed().filter(|count| has_count || *count == 0)?;
        let sample = Sample {
            kind,
            count: has_count.then_some(count),
            with_values,
            seed: self.varint()?,
        };
        let key = self.string()?;
        Some(Command::Sample { sample, key })
    }
}
