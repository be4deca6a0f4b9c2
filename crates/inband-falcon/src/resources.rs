//! Names of resources. Packets contain their numbers; the scheduler knows the names.

use serde::{Deserialize, Serialize};

use crate::limits::{RESOURCE_MAX, RESOURCE_NAME_LEN_BYTES_MAX};

/// Why a resource is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    /// Not a valid name.
    #[error("{0:?} is not a resource name; use 1 to {RESOURCE_NAME_LEN_BYTES_MAX} letters, digits, - and _, and not digits alone")]
    Name(String),
    /// A duplicate name.
    #[error("resource {0:?} is listed twice; give each its own name")]
    Twice(String),
    #[error("{0} resources are more than {RESOURCE_MAX}")]
    TooMany(usize),
    /// A name that the scheduler does not know.
    #[error("the scheduler knows no resource {0:?}; it has {known}, and the numbers 1 to {RESOURCE_MAX}", known = in_words(.1))]
    Unknown(String, Vec<String>),
}

fn in_words(names: &[String]) -> String {
    match names {
        [] => "no names (start it with --resource-names)".into(),
        names => names.join(", "),
    }
}

/// Names of the resources from number 1 on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceNames(Vec<String>);

impl ResourceNames {
    /// Checks the names.
    pub fn new(names: Vec<String>) -> Result<ResourceNames, ResourceError> {
        if names.len() > usize::from(RESOURCE_MAX) {
            return Err(ResourceError::TooMany(names.len()));
        }
        for (at, name) in names.iter().enumerate() {
            let of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            let is_number = name.chars().all(|c| c.is_ascii_digit());
            let is_short = name.len() <= RESOURCE_NAME_LEN_BYTES_MAX;
            if is_number || !is_short || !name.chars().all(of_name) {
                return Err(ResourceError::Name(name.clone()));
            }
            if names[..at].contains(name) {
                return Err(ResourceError::Twice(name.clone()));
            }
        }
        Ok(ResourceNames(names))
    }

    /// Returns the number of a resource, given its name or number.
    pub fn number(&self, said: &str) -> Result<u8, ResourceError> {
        let by_name = self.0.iter().position(|name| name == said);
        let number = match by_name {
            Some(at) => u8::try_from(at + 1).ok(),
            None => said.parse().ok(),
        };
        number
            .filter(|number| (1..=RESOURCE_MAX).contains(number))
            .ok_or_else(|| ResourceError::Unknown(said.to_owned(), self.0.clone()))
    }

    /// Returns a bitmap of these resources, for a worker's registration. Bit 0, for none, is always set.
    pub fn bitmap(&self, said: &[String]) -> Result<u64, ResourceError> {
        said.iter()
            .try_fold(1, |bits, said| Ok(bits | 1 << self.number(said)?))
    }

    /// Returns the resources in such a bitmap, by name.
    pub fn of_bitmap(&self, bitmap: u64) -> Vec<String> {
        let numbers = (1..=RESOURCE_MAX).filter(|number| bitmap >> number & 1 == 1);
        let name = |number: u8| {
            let name = self.0.get(usize::from(number) - 1);
            name.cloned().unwrap_or_else(|| number.to_string())
        };
        numbers.map(name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Result<ResourceNames, ResourceError> {
        ResourceNames::new(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn names_stand_for_numbers_from_1_on() {
        let names = names(&["gpu", "big-mem"]).expect("good names");
        assert_eq!((names.number("gpu"), names.number("63")), (Ok(1), Ok(63)));
        assert_eq!(names.number("2"), Ok(2), "by its number");
        let wanted = ["big-mem".to_owned(), "7".to_owned()];
        let bitmap = names.bitmap(&wanted).expect("known");
        assert_eq!(bitmap, 1 | 1 << 2 | 1 << 7);
        assert_eq!(names.of_bitmap(bitmap), wanted);
        assert_eq!(names.bitmap(&[]), Ok(1));
        for unknown in ["fpga", "0", "64", "-1", ""] {
            let said = names.number(unknown).expect_err("not one").to_string();
            assert!(said.contains("it has gpu, big-mem"), "{said}");
        }
    }

    #[test]
    fn bad_names_are_refused() {
        for bad in ["", "7", "a b", "sixteen-letters-", "gpu,"] {
            assert_eq!(names(&[bad]), Err(ResourceError::Name(bad.into())));
        }
        assert_eq!(
            names(&["a", "b", "a"]),
            Err(ResourceError::Twice("a".into()))
        );
        let many: Vec<String> = (0..64).map(|n| format!("r{n}")).collect();
        assert_eq!(ResourceNames::new(many), Err(ResourceError::TooMany(64)));
    }
}
