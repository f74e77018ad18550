//! Parameters of statements, each with its type, so that no statement needs to be prepared: a pooler that
//! hands out connections per transaction would lose it.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use semel_core::ident::JobId;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// A PostgreSQL `uuid` of any content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

impl ToSql for Uuid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Uuid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }
}

/// A job's id, as a PostgreSQL `uuid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(pub JobId);

impl ToSql for Id {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        Uuid(self.0.to_bytes()).to_sql(kind, out)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Id {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(JobId::from_bytes(Uuid::from_sql(kind, raw)?.0)))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }
}

/// The parameters of one statement, in order.
#[derive(Default)]
pub struct Params<'a> {
    values: Vec<(Box<dyn ToSql + Sync + Send + 'a>, Type)>,
    is_sparse: bool,
    /// The place and name of each named parameter.
    #[cfg(test)]
    names: Vec<(usize, &'static str)>,
}

impl<'a> Params<'a> {
    /// Names the next parameter as the function that takes it does. The database goes by places alone; only a
    /// test reads the names, and compares them with the function's text.
    pub fn named(&mut self, name: &'static str) -> &mut Self {
        #[cfg(test)]
        self.names.push((self.values.len(), name));
        #[cfg(not(test))]
        let _ = name;
        self
    }

    /// Adds the parameters of the time, with which most functions begin.
    pub fn time(&mut self, clock: Option<i64>, ahead: i64, floor: i64) {
        self.named("p_clock").push(clock, Type::INT8);
        self.named("p_ahead").number(ahead);
        self.named("p_floor").number(floor);
    }

    /// Adds a parameter.
    pub fn push(&mut self, value: impl ToSql + Sync + Send + 'a, kind: Type) {
        self.values.push((Box::new(value), kind));
    }

    /// Adds a number.
    pub fn number(&mut self, value: i64) {
        self.push(value, Type::INT8);
    }

    /// Creates parameters for a function that accepts NULL for an empty list. NULL costs the database
    /// nothing, and most lists of a commit are empty.
    pub fn sparse() -> Self {
        Self { is_sparse: true, ..Self::default() }
    }

    /// Adds a list.
    fn list<T: ToSql + Sync + Send + 'a>(&mut self, values: Vec<T>, kind: Type) {
        if self.is_sparse && values.is_empty() {
            return self.push(None::<Vec<T>>, kind);
        }
        self.push(values, kind);
    }

    /// Adds a list of numbers.
    pub fn numbers(&mut self, values: Vec<i64>) {
        self.list(values, Type::INT8_ARRAY);
    }

    /// Adds a list of numbers, some of which may be NULL.
    pub fn maybe_numbers(&mut self, values: Vec<Option<i64>>) {
        self.maybe(values, Type::INT8_ARRAY);
    }

    /// Adds a list of values, some of which may be NULL.
    fn maybe<T: ToSql + Sync + Send + 'a>(&mut self, values: Vec<Option<T>>, kind: Type) {
        if self.is_sparse && values.iter().all(Option::is_none) {
            return self.push(None::<Vec<Option<T>>>, kind);
        }
        self.push(values, kind);
    }

    /// Adds a list of numbers below 2^31, such as groups and guards.
    pub fn places(&mut self, values: Vec<i32>) {
        self.list(values, Type::INT4_ARRAY);
    }

    /// Adds a list of such numbers, some of which may be NULL.
    pub fn maybe_places(&mut self, values: Vec<Option<i32>>) {
        self.maybe(values, Type::INT4_ARRAY);
    }

    /// Adds a list of codes.
    pub fn codes(&mut self, values: Vec<i16>) {
        self.list(values, Type::INT2_ARRAY);
    }

    /// Adds a list of booleans.
    pub fn flags(&mut self, values: Vec<bool>) {
        self.list(values, Type::BOOL_ARRAY);
    }

    /// Adds a list of ids.
    pub fn ids(&mut self, values: Vec<JobId>) {
        self.list(values.into_iter().map(Id).collect::<Vec<_>>(), Type::UUID_ARRAY);
    }

    /// Adds a list of other `uuid`s.
    pub fn uuids(&mut self, values: Vec<Uuid>) {
        self.list(values, Type::UUID_ARRAY);
    }

    /// Adds a list of ids, some of which may be NULL.
    pub fn maybe_ids(&mut self, values: Vec<Option<JobId>>) {
        self.maybe(values.into_iter().map(|id| id.map(Id)).collect::<Vec<_>>(), Type::UUID_ARRAY);
    }

    /// Adds a list of texts.
    pub fn texts(&mut self, values: Vec<&'a str>) {
        self.list(values, Type::TEXT_ARRAY);
    }

    /// Adds a list of texts, some of which may be NULL.
    pub fn maybe_texts(&mut self, values: Vec<Option<&'a str>>) {
        self.maybe(values, Type::TEXT_ARRAY);
    }

    /// Adds a list of bytes.
    pub fn blobs(&mut self, values: Vec<&'a [u8]>) {
        self.list(values, Type::BYTEA_ARRAY);
    }

    /// Adds a list of byte strings, some of which may be NULL.
    pub fn maybe_blobs(&mut self, values: Vec<Option<&'a [u8]>>) {
        self.maybe(values, Type::BYTEA_ARRAY);
    }

    /// Adds a list of owned byte strings, some of which may be NULL.
    pub fn maybe_bytes(&mut self, values: Vec<Option<Vec<u8>>>) {
        self.maybe(values, Type::BYTEA_ARRAY);
    }

    /// Returns the values with their types, as the client takes them.
    pub fn typed(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.values.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect()
    }

    /// Returns the name of each, and its type as PostgreSQL's catalogue names it.
    #[cfg(test)]
    pub fn named_types(&self) -> Vec<(&'static str, String)> {
        let places = self.names.iter().map(|(place, _)| *place);
        assert!(places.eq(0..self.values.len()), "each has one name: {:?}", self.names);
        let types = self.values.iter().map(|(_, kind)| kind.name().to_owned());
        self.names.iter().map(|(_, name)| *name).zip(types).collect()
    }

    /// Returns `$1, $2, …` for all of them.
    pub fn marks(&self) -> String {
        let marks: Vec<String> = (1..=self.values.len()).map(|place| format!("${place}")).collect();
        marks.join(", ")
    }
}
