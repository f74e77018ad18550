//! The events of the log, and the ways one and the same event can be spelled on the wire.

use unicode_normalization::UnicodeNormalization;

use super::random::Random;

const NAMES: [&str; 8] = [
    "Jos\u{e9} M\u{fc}ller",
    "Zo\u{eb} Bront\u{eb}",
    "S\u{f8}ren \u{c5}ngstr\u{f6}m",
    "Nguy\u{1ec5}n Th\u{1ecb} H\u{e0}",
    "\u{141}ukasz \u{17b}ak",
    "Fran\u{e7}ois No\u{eb}l",
    "\u{c1}ine N\u{ed} Bhriain",
    "\u{160}\u{e1}rka Dvo\u{159}\u{e1}kov\u{e1}",
];
const CURRENCIES: [&str; 4] = ["EUR", "USD", "CZK", "VND"];
const GOODS: [&str; 5] = [
    "caf\u{e9} cr\u{e8}me",
    "cr\u{ea}pe pan",
    "na\u{ef}ve art print",
    "jalape\u{f1}o seeds",
    "p\u{e2}t\u{e9} mould",
];

/// What happened at the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A payment was captured.
    Payment,
    /// An order was placed.
    Order,
    /// An upload was finished.
    Upload,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Payment, Self::Order, Self::Upload];

    /// The job's type.
    pub const fn job_type(self) -> &'static str {
        match self {
            Self::Payment => "payment.captured",
            Self::Order => "order.placed",
            Self::Upload => "upload.finished",
        }
    }

    /// The end of the queue's name.
    pub const fn queue(self) -> &'static str {
        match self {
            Self::Payment => "payments",
            Self::Order => "orders",
            Self::Upload => "uploads",
        }
    }
}

/// How a delivery spells its event. All spellings are the same JSON value, by the canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// As it was first sent.
    Plain,
    /// Members in another order, at every level.
    MemberOrder,
    /// Strings and names decomposed (NFD).
    UnicodeForm,
    /// 1999 as 1999.0, 0.59 as 5.9e-1.
    Numbers,
}

/// One event of the log.
#[derive(Clone, Debug)]
pub struct Event {
    /// The upstream's own id of the event, which must have its effect exactly once.
    pub id: String,
    /// What happened.
    pub kind: Kind,
    payload: Node,
}

#[derive(Clone, Debug)]
enum Node {
    Text(String),
    Whole(u64),
    /// Hundredths.
    Cents(u64),
    Flag(bool),
    List(Vec<Node>),
    Object(Vec<(&'static str, Node)>),
}

impl Event {
    /// The event with this number in the log of `run`.
    pub fn new(run: &str, number: u64, random: &mut Random) -> Self {
        let kind = random.pick(&Kind::ALL).unwrap_or(Kind::Payment);
        let id = format!("evt_{run}_{number:06}");
        let text = |text: &str| Node::Text(text.to_owned());
        let name = random.pick(&NAMES).unwrap_or_default();
        let currency = random.pick(&CURRENCIES).unwrap_or_default();
        let customer = Node::Object(vec![
            ("id", Node::Text(format!("cus_{:08x}", random.below(1 << 32)))),
            ("name", text(name)),
            ("vip", Node::Flag(random.chance(10))),
        ]);
        let data = match kind {
            Kind::Payment => vec![
                ("payment_id", Node::Text(format!("pay_{:010x}", random.below(1 << 40)))),
                ("amount", Node::Whole(100 + random.below(500_000))),
                ("currency", text(currency)),
                ("fee", Node::Cents(1 + random.below(5_000))),
                ("customer", customer),
            ],
            Kind::Order => {
                let mut item = || {
                    Node::Object(vec![
                        ("sku", Node::Whole(10_000 + random.below(90_000))),
                        ("title", text(random.pick(&GOODS).unwrap_or_default())),
                        ("quantity", Node::Whole(1 + random.below(5))),
                        ("price", Node::Cents(99 + random.below(20_000))),
                    ])
                };
                let items = vec![item(), item()];
                vec![
                    ("order_id", Node::Whole(1_000_000 + number)),
                    ("customer", customer),
                    ("items", Node::List(items)),
                    ("caf\u{e9}_pickup", Node::Flag(random.chance(20))),
                ]
            }
            Kind::Upload => vec![
                ("object", Node::Text(format!("incoming/{name}/{:06x}.pdf", random.below(1 << 24)))),
                ("bytes", Node::Whole(1_024 + random.below(50_000_000))),
                ("owner", customer),
                ("score", Node::Cents(random.below(100))),
            ],
        };
        let payload = Node::Object(vec![
            ("id", Node::Text(id.clone())),
            ("event", text(kind.job_type())),
            ("created", Node::Whole(1_767_225_600 + number)),
            ("livemode", Node::Flag(true)),
            ("data", Node::Object(data)),
        ]);
        Self { id, kind, payload }
    }

    /// The event's JSON in one of its spellings.
    pub fn spelled(&self, spelling: Spelling) -> String {
        let mut out = String::with_capacity(400);
        self.payload.write(spelling, &mut out);
        out
    }
}

impl Node {
    fn write(&self, spelling: Spelling, out: &mut String) {
        match self {
            Self::Text(text) => put_text(text, spelling, out),
            Self::Flag(flag) => out.push_str(if *flag { "true" } else { "false" }),
            Self::Whole(number) if spelling == Spelling::Numbers => out.push_str(&format!("{number}.0")),
            Self::Whole(number) => out.push_str(&number.to_string()),
            Self::Cents(cents) if spelling == Spelling::Numbers => out.push_str(&format!("{cents}e-2")),
            Self::Cents(cents) => out.push_str(&format!("{}.{:02}", cents / 100, cents % 100)),
            Self::List(nodes) => {
                out.push('[');
                for (at, node) in nodes.iter().enumerate() {
                    separate(at, out);
                    node.write(spelling, out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                let backwards = spelling == Spelling::MemberOrder;
                for at in 0..members.len() {
                    let (name, node) = &members[if backwards { members.len() - 1 - at } else { at }];
                    separate(at, out);
                    put_text(name, spelling, out);
                    out.push(':');
                    node.write(spelling, out);
                }
                out.push('}');
            }
        }
    }
}

fn separate(at: usize, out: &mut String) {
    if at > 0 {
        out.push(',');
    }
}

/// Writes a string; none of the texts needs escaping.
fn put_text(text: &str, spelling: Spelling, out: &mut String) {
    out.push('"');
    if spelling == Spelling::UnicodeForm {
        out.extend(text.nfd());
    } else {
        out.push_str(text);
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_differ_in_bytes_and_are_one_value() {
        let mut random = Random::new(7);
        for number in 0..50 {
            let event = Event::new("r", number, &mut random);
            let plain = event.spelled(Spelling::Plain);
            let canonical =
                |text: &str| semel_core::canon::digest(&semel_core::canon::Json::parse(text, "").unwrap());
            for spelling in [Spelling::MemberOrder, Spelling::UnicodeForm, Spelling::Numbers] {
                let other = event.spelled(spelling);
                assert_ne!(other, plain, "{spelling:?}");
                assert_eq!(canonical(&other), canonical(&plain), "{plain}\n{other}");
            }
        }
    }

    #[test]
    fn a_seed_makes_one_log() {
        let log = |seed| Event::new("r", 1, &mut Random::new(seed)).spelled(Spelling::Plain);
        assert_eq!(log(1), log(1));
        assert_ne!(log(1), log(2));
    }
}
