//! Enums whose variants are listed, and said in words, where they are declared.

/// An enum with `ALL` of its variants, and the function that says a variant in the words behind its `=`, which are in
/// its documentation, too.
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
            /// All of them, in order.
            pub const ALL: [$Kind; [$($words),+].len()] = [$($Kind::$Variant),+];

            /// It, in words.
            pub fn $say(self) -> &'static str {
                match self {
                    $($Kind::$Variant => $words,)+
                }
            }
        }
    };
}

pub(crate) use listed;
