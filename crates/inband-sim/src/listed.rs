//! Enums with a list of their variants and a description of each: invariants and faults.

use std::fmt;

/// An enum whose variants are listed and described. [`listed!`] implements it.
pub trait Listed: Copy + Eq + fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// All variants, in order.
    const LIST: &'static [Self];

    fn description(self) -> &'static str;
}

/// Declares an enum with `ALL` its variants, a function that returns a variant's description, which is also its
/// documentation, [`Listed`], and `Display`, which writes the variant's name.
#[macro_export]
macro_rules! listed {
    (
        $(#[$attribute:meta])*
        pub enum $Kind:ident, said by $say:ident {
            $($(#[$doc:meta])* $Variant:ident = $words:literal,)+
        }
    ) => {
        $(#[$attribute])*
        pub enum $Kind {
            $(
                #[doc = $words]
                #[doc = ""]
                $(#[$doc])*
                $Variant,
            )+
        }

        impl $Kind {
            /// All variants, in order.
            pub const ALL: [$Kind; [$($words),+].len()] = [$($Kind::$Variant),+];

            /// The variant's description.
            pub fn $say(self) -> &'static str {
                match self {
                    $($Kind::$Variant => $words,)+
                }
            }
        }

        impl $crate::Listed for $Kind {
            const LIST: &'static [$Kind] = &$Kind::ALL;

            fn description(self) -> &'static str {
                self.$say()
            }
        }

        impl std::fmt::Display for $Kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(self, f)
            }
        }
    };
}
