//! Types that are written as text in configurations, on the command line and in statuses.

/// `FromStr` and `Display` of an enum whose variants have these names; `$what` is what the error calls it.
#[macro_export]
macro_rules! by_name {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),+) => {
        impl ::std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    other => Err($crate::text::unknown($what, other, &[$($name),+])),
                }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $name,)+
                })
            }
        }
    };
}

/// Serializes a type as its text: what `Display` writes, and `FromStr` reads.
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty) => {
        impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <String as ::serde::Deserialize>::deserialize(from)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        }
    };
}

/// Returns a number with what it counts: `1 key`, `2 keys`.
#[must_use]
pub fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// The error for a name that is none of these.
#[must_use]
pub fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    let known: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
    let (last, others) = known.split_last().expect("an enum has variants");
    format!(
        "unknown {what} {name:?}; choose {} or {last}",
        others.join(", ")
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_is_singular() {
        let counted = |count| super::counted(count, "key");
        assert_eq!([0, 1, 2].map(counted), ["0 keys", "1 key", "2 keys"]);
    }

    #[derive(Debug, PartialEq)]
    enum Size {
        Small,
        Large,
        Huge,
    }

    by_name!(
        Size,
        "size",
        Small = "small",
        Large = "large",
        Huge = "huge"
    );

    #[test]
    fn names_are_read_back_and_others_are_refused_with_those_that_exist() {
        for size in [Size::Small, Size::Large, Size::Huge] {
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        let error = "medium".parse::<Size>().expect_err("no such size");
        assert_eq!(
            error,
            r#"unknown size "medium"; choose "small", "large" or "huge""#
        );
    }
}
