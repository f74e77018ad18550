//! Unique policies on the wire: the specification's form, those of the SDKs, and presets.

use semel_core::error::Invalid;
use semel_core::template::Asked;
use semel_core::unique::{Dimension, MetaPart, MissingKey, PolicySpec, Preset, UniquePolicy};

use crate::duration;
use crate::members::{Members, Value, below};
use crate::write::Object;

/// Reads one member that was sent and is not null.
type Take = for<'v> fn(&mut Sent<'v>, Value<'v>) -> Result<(), Invalid>;

/// The members of a policy, and how each is read.
const MEMBERS: [(&str, Take); 18] = [
    ("keys", |sent, value| put(&mut sent.spec.keys, value.strings())),
    ("args_keys", |sent, value| put(&mut sent.spec.args_keys, value.strings())),
    ("meta_keys", |sent, value| put(&mut sent.spec.meta_keys, value.strings())),
    ("meta_except", |sent, value| put(&mut sent.spec.meta_except, value.strings())),
    ("key", read_key),
    ("scope", |sent, value| put(&mut sent.spec.scope, text(value))),
    // A policy copied from an answer must be accepted.
    ("with_version", |sent, value| {
        sent.spec.with_version = value.flag()?;
        Ok(())
    }),
    ("period", |sent, value| read_period(&mut sent.spec, value)),
    ("period_ms", |sent, value| put(&mut sent.millis, Ok(value))),
    ("within", |sent, value| put(&mut sent.within, Ok(value))),
    ("period_from", |sent, value| put(&mut sent.spec.period_from, text(value))),
    ("states", |sent, value| put(&mut sent.spec.states, value.strings())),
    ("while_active", |sent, value| put(&mut sent.spec.while_active, value.flag())),
    ("when_active", |sent, value| put(&mut sent.spec.when_active, text(value))),
    ("on_conflict", |sent, value| put(&mut sent.spec.on_conflict, read_strategy(value))),
    ("on_mismatch", |sent, value| put(&mut sent.spec.on_mismatch, text(value))),
    ("disclose", |sent, value| put(&mut sent.spec.disclose, text(value))),
    ("preset", |sent, value| put(&mut sent.preset, Ok(value))),
];

/// The members that were sent. Some can only be interpreted together with the others.
#[derive(Default)]
struct Sent<'v> {
    spec: PolicySpec,
    preset: Option<Value<'v>>,
    /// `key`, if it is a list.
    key_list: Option<Value<'v>>,
    /// `key`, if it is null.
    null_key: Option<Value<'v>>,
    millis: Option<Value<'v>>,
    within: Option<Value<'v>>,
}

impl<'v> Sent<'v> {
    fn read(members: &'v Members<'v>, pointer: &'v str) -> Result<Self, Invalid> {
        let mut sent = Self::default();
        for (name, value) in members.iter(pointer).filter(|(name, _)| *name != DUPLICATES) {
            let Some((_, take)) = MEMBERS.iter().find(|(known, _)| *known == name) else {
                return Err(unknown(value));
            };
            if !value.is_null() {
                take(&mut sent, value)?;
            } else if name == "key" {
                sent.null_key = Some(value);
            }
        }
        Ok(sent)
    }

    /// Combines the members into what they ask for.
    fn understood(self) -> Result<Read, Invalid> {
        let Self { mut spec, preset, key_list, null_key, millis, within } = self;
        if let Some(value) = millis {
            refuse_second_period(&spec, value)?;
            spec.period_ms = Some(read_millis(value)?);
        }
        if let Some(value) = within {
            refuse_second_period(&spec, value)?;
            let text = value.string()?;
            let length = duration::parse(&text, &value.pointer())?;
            spec.period_ms = Some(duration::millis(length));
        }
        let key_was_list = key_list.is_some();
        if let Some(value) = key_list {
            read_key_list(&mut spec, value)?;
        }
        let preset = preset.map(read_preset).transpose()?;
        if let Some(value) = null_key {
            refuse_null_key(&spec, preset, value)?;
        }
        // Only Go clients send the period like this; without an identity, their documentation says that the whole args count.
        if millis.is_some() && preset.is_none() && !says_what_is_same(&spec) {
            spec.keys = Some(vec!["type".to_owned(), "args".to_owned()]);
        }
        let period_member = match (millis, within) {
            (Some(_), _) => "period_ms",
            (None, Some(_)) => "within",
            (None, None) => "period",
        };
        Ok(Read { asked: Asked { preset, spec }, key_was_list, period_member })
    }
}

/// The member that answers add to a policy: the duplicates that the job has absorbed. It is not part of the policy.
pub(crate) const DUPLICATES: &str = "duplicates";

/// A policy as it was sent, with normalised spellings; its preset is named but not yet looked up.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) asked: Asked,
    key_was_list: bool,
    /// The member that sets the period.
    period_member: &'static str,
}

impl Read {
    /// Moves an error's place from the normalised member to the one that the caller sent.
    pub(crate) fn place(&self, mut refused: Invalid, pointer: &str) -> Invalid {
        if self.key_was_list {
            let rest = ["args_keys", "keys"]
                .iter()
                .find_map(|member| refused.pointer.strip_prefix(&below(pointer, member)));
            if let Some(rest) = rest {
                refused.pointer = format!("{pointer}/key{rest}");
            }
        }
        // A period is refused under its normalised name, which may not be the one that was sent.
        if ["period", "period_ms"].iter().any(|member| refused.pointer == below(pointer, member)) {
            refused.pointer = below(pointer, self.period_member);
        }
        refused
    }
}

/// The error for a policy that needs a key, if the request has none at `pointer`.
pub(crate) fn missing_key(MissingKey(preset): MissingKey, pointer: &str) -> Invalid {
    Invalid::request(
        pointer,
        format!("is missing, but the preset {preset} needs it; send the key that names the work"),
    )
}

/// Reads a standalone policy; `None` if it asks for none (`always_unique`).
#[cfg(test)]
fn read(sent: Value<'_>) -> Result<Option<std::sync::Arc<UniquePolicy>>, Invalid> {
    let pointer = sent.pointer();
    let read = read_asked(sent)?;
    let given = semel_core::unique::Given { has_version: true, ..Default::default() };
    let spec = read.asked.resolve(&given).map_err(|missing| missing_key(missing, &below(&pointer, "key")))?;
    let built = spec.map(|spec| UniquePolicy::build(&spec, &pointer)).transpose();
    Ok(built.map_err(|refused| read.place(refused, &pointer))?.map(std::sync::Arc::new))
}

/// Reads a policy without looking up its preset.
pub(crate) fn read_asked(sent: Value<'_>) -> Result<Read, Invalid> {
    let pointer = &*sent.pointer();
    if sent.is_string() {
        let asked = Asked::preset(read_preset(sent)?);
        return Ok(Read { asked, key_was_list: false, period_member: "period" });
    }
    if !sent.is_object() {
        return Err(sent.refuse(
            "is neither a policy nor the name of a preset; send an object such as {\"keys\": [\"type\", \"args\"]}",
        ));
    }
    Sent::read(&sent.members()?, pointer)?.understood()
}

fn put<T>(member: &mut Option<T>, read: Result<T, Invalid>) -> Result<(), Invalid> {
    *member = Some(read?);
    Ok(())
}

fn text(value: Value<'_>) -> Result<String, Invalid> {
    Ok(value.string()?.into_owned())
}

/// Reads a strategy by this server's name for it, or by an alias.
fn read_strategy(value: Value<'_>) -> Result<String, Invalid> {
    let strategy = text(value)?;
    Ok(if strategy == "use_existing" { "ignore".to_owned() } else { strategy })
}

fn read_key<'v>(sent: &mut Sent<'v>, value: Value<'v>) -> Result<(), Invalid> {
    if value.is_array() {
        return put(&mut sent.key_list, Ok(value));
    }
    let key = text(value).map_err(|_| {
        value.refuse("is neither a string nor a list; send the text that names the work, or a list of the members of args that count")
    });
    put(&mut sent.spec.key, key)
}

fn unknown(value: Value<'_>) -> Invalid {
    let names = MEMBERS.map(|(name, _)| name).join(", ");
    value.refuse(format!("is not a member of a unique policy; use {names}"))
}

/// Whether a policy says which members of a job, or which key, identify it.
fn says_what_is_same(spec: &PolicySpec) -> bool {
    let lists = [&spec.keys, &spec.args_keys, &spec.meta_keys, &spec.meta_except];
    spec.key.is_some() || lists.iter().any(|list| list.is_some())
}

/// Refuses a null `key` in a policy with no other identity: it would make all jobs of a type the same.
fn refuse_null_key(spec: &PolicySpec, preset: Option<Preset>, value: Value<'_>) -> Result<(), Invalid> {
    if preset.is_some() || says_what_is_same(spec) {
        return Ok(());
    }
    Err(value.refuse(
        "is null, but nothing else says which jobs are the same; send the text that names the work, or leave `unique` out if there is none",
    ))
}

fn read_preset(value: Value<'_>) -> Result<Preset, Invalid> {
    Preset::from_name(&value.string()?).ok_or_else(|| {
        let known = Preset::ALL.map(Preset::name).join(", ");
        value.refuse(format!("is not a preset; use one of {known}, or write the policy out"))
    })
}

fn read_period(spec: &mut PolicySpec, value: Value<'_>) -> Result<(), Invalid> {
    let text = value.string().map_err(|_| {
        value.refuse(
            "is not a duration; write it in ISO 8601, such as PT5M, or send `period_ms` in milliseconds",
        )
    })?;
    if duration::go(&text).is_some() {
        // The core specification's own example is "3600s".
        spec.period_ms = Some(duration::millis(duration::parse(&text, &value.pointer())?));
    } else {
        spec.period = Some(text.into_owned());
    }
    Ok(())
}

fn refuse_second_period(spec: &PolicySpec, value: Value<'_>) -> Result<(), Invalid> {
    if spec.period.is_none() && spec.period_ms.is_none() {
        return Ok(());
    }
    Err(value.refuse("gives the period a second time; send only one of `period`, `period_ms` and `within`"))
}

fn read_millis(value: Value<'_>) -> Result<u64, Invalid> {
    u64::try_from(value.integer()?)
        .map_err(|_| value.refuse("is negative; send a positive number of milliseconds"))
}

/// Reads `key` as a list: dimensions in one SDK, members of args in the others.
fn read_key_list(spec: &mut PolicySpec, value: Value<'_>) -> Result<(), Invalid> {
    if spec.keys.is_some() || spec.args_keys.is_some() {
        return Err(value.refuse("cannot be combined with `keys` or `args_keys`; send one or the other"));
    }
    let names = value.strings()?;
    let is_dimension = |name: &String| Dimension::from_name(name).is_some();
    if !names.is_empty() && names.iter().all(is_dimension) {
        spec.keys = Some(names);
    } else {
        spec.keys = Some(vec!["type".to_owned(), "args".to_owned()]);
        spec.args_keys = (!names.is_empty()).then_some(names);
    }
    Ok(())
}

/// Rewords an error about what a policy compares for a caller who sent `key` as a list.
pub(crate) fn in_its_words(mut refused: Invalid, sent: Value<'_>) -> Invalid {
    let Ok(members) = sent.members() else { return refused };
    let list = members.get("", "key").filter(|key| key.is_array()).and_then(|key| key.strings().ok());
    if let Some(names) = list {
        refused.message = refused.message.replace("args_keys", "unique.key");
        if names.iter().any(|name| Dimension::from_name(name).is_some()) {
            refused.message += "; a name such as queue means the job's own queue only if every name in the list is of that kind";
        }
    }
    refused
}

/// Writes a policy in force as an object.
pub fn write(policy: &UniquePolicy, out: &mut String) {
    crate::write::object(out, |object| put_members(policy, object));
}

/// Writes the members of a policy in force.
pub(crate) fn put_members(policy: &UniquePolicy, object: &mut Object<'_>) {
    let has = |dimension| policy.dimensions().contains(dimension);
    match policy.key_text() {
        Some(key) => {
            object.text("key", key);
            object.plain("scope", policy.scope().name());
            if has(Dimension::Version) {
                object.flag("with_version", true);
            }
        }
        None => object.texts("keys", policy.dimensions().iter().map(Dimension::name)),
    }
    if !policy.args_keys().is_empty() {
        object.texts("args_keys", policy.args_keys());
    }
    if has(Dimension::Meta) {
        match policy.meta_part() {
            MetaPart::Only(names) => object.texts("meta_keys", names),
            MetaPart::Except(names) => object.texts("meta_except", names),
        }
    }
    if let Some(period) = policy.period() {
        object.plain("period", period);
        object.plain("period_from", policy.period_from());
        object.flag("while_active", policy.while_active());
    }
    object.texts("states", policy.states().iter().map(|state| state.name()));
    object.plain("on_conflict", policy.on_conflict());
    if policy.needs_all_holders() {
        object.plain("when_active", policy.when_active());
    }
    object.plain("on_mismatch", policy.on_mismatch());
    object.plain("disclose", policy.disclose());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::object;

    fn policy(text: &str) -> UniquePolicy {
        let raw: Box<serde_json::value::RawValue> = serde_json::from_str(text).unwrap();
        let read =
            read(Value::new(&raw, "", "unique")).unwrap_or_else(|refused| panic!("{refused} in {text}"));
        UniquePolicy::clone(&read.unwrap())
    }

    /// A client may send back the policy from an answer.
    #[test]
    fn what_is_answered_of_a_policy_is_that_policy() {
        for sent in [
            r#"{}"#,
            r#"{"keys":["queue","args"],"args_keys":["a"],"period":"P1M","while_active":true}"#,
            r#"{"keys":["meta"],"meta_keys":["a","b"],"on_conflict":"ignore"}"#,
            r#"{"keys":["meta"],"meta_except":[],"on_mismatch":"reject"}"#,
            r#"{"keys":["version"],"states":["available","completed"],"period_ms":1,"period_from":"finished"}"#,
            r#"{"key":"k","with_version":true}"#,
            r#"{"key":"k","scope":"global","with_version":true}"#,
            r#"{"key":"k","scope":"global","disclose":"never"}"#,
            r#"{"on_conflict":"replace","when_active":"wait"}"#,
            r#"{"on_conflict":"replace_except_schedule","states":["scheduled"]}"#,
            r#"{"on_conflict":"follow_up"}"#,
            r#""strict""#,
            r#"{"preset":"content","period":"3600s","period_from":"last_duplicate"}"#,
            r#"{"preset":"caller_provided","key":"k"}"#,
        ] {
            let policy_sent = policy(sent);
            let mut answered = String::new();
            object(&mut answered, |object| put_members(&policy_sent, object));
            assert_eq!(policy(&answered), policy_sent, "{sent} was answered as {answered}");
        }
    }
}
