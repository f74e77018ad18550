//! The stored form of small documents: JSON.

/// Gives a type made of strings, numbers and raw values its stored form.
macro_rules! stored_as_json {
    ($name:ident) => {
        impl $name {
            /// The stored form: JSON.
            pub fn encode(&self) -> bytes::Bytes {
                // Strings, numbers and raw values only: nothing here can fail to serialise.
                serde_json::to_vec(self).unwrap_or_default().into()
            }

            /// Reads the stored form.
            ///
            /// # Errors
            /// When the bytes are not what [`encode`](Self::encode) writes.
            pub fn decode(bytes: &[u8]) -> Result<Self, $crate::body::Corrupt> {
                serde_json::from_slice(bytes).map_err(|error| $crate::body::Corrupt(error.to_string()))
            }
        }
    };
}
pub(crate) use stored_as_json;
