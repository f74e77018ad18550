//! `/ojs/v1/whoami`: what a token may do, so that a page need not offer what would be refused.

use semel_ojs::write::object;

use crate::auth::{Queues, Role};
use crate::caller::Caller;
use crate::respond::Answer;
use crate::tenancy::Scope;

/// `GET /whoami`. A server without tokens tells everybody that they may do everything, which is true.
pub(crate) async fn show(Scope(app): Scope, caller: Caller) -> Answer {
    let mut out = String::new();
    object(&mut out, |outer| {
        outer.plain("tenant", app.engine.tenant());
        outer.flag("inspect", caller.inspect());
        match caller.token() {
            None => {
                outer.raw("token", "null");
                outer.texts("roles", Role::ALL.map(Role::name));
                outer.raw("queues", "null");
            }
            Some(token) => {
                outer.text("token", &token.id);
                outer.texts("roles", token.roles.iter().map(|role| role.name()));
                match &token.queues {
                    Queues::All => outer.raw("queues", "null"),
                    Queues::Only(patterns) => outer.texts("queues", patterns.iter()),
                }
                outer.time("expires_at", token.expires_at);
            }
        }
    });
    Answer::ok(out)
}
