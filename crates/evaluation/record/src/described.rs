//! Structures whose doc comments also are the reference of records.

/// Defines a structure, and a constant with the name and the description of each field.
macro_rules! described {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(
                $(#[doc = $about:literal])+
                $(#[serde($($serde:tt)*)])?
                pub $field:ident: $type:ty,
            )+
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $(
                $(#[doc = $about])+
                $(#[serde($($serde)*)])?
                pub $field: $type,
            )+
        }

        impl $name {
            /// Name of each field in JSON, and its description, which begins with a space.
            pub const FIELDS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), concat!($($about),+)),)+];
        }
    };
}

pub(crate) use described;
