//! What one caller does, or one row contains, must not harm others.

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::{Group, KeyRead, Reads};
use semel_core::enqueue::Outcome;
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::settle::{Report, Settled};
use semel_core::sight::Queues;
use semel_core::state::StateSet;
use semel_core::unique::deciding;
use semel_engine::Engine;
use semel_engine::duty::{Purge, Reap};
use semel_postgres::Postgres;
use semel_store::Backend;
use semel_store::backend::{Batch, Claim, Filter, Verdict};
use semel_store::clock::ManualClock;
use semel_testkit::fixture::{claim, groups_of};
use semel_testkit::make::{Want, foreign_id, job, key, keyed};

use crate::place::{Place, client, relayed, until, url};

/// Far longer than anything here takes without waiting for a lock.
const LONG: Duration = Duration::from_secs(60);

async fn opened(place: &Place) -> (Arc<Postgres>, Engine) {
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    (store, engine)
}

/// PostgreSQL's texts cannot contain a zero byte, and the requests of one transaction fail together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_a_zero_in_its_name_fails_nobodys_commit() {
    let (store, engine) = opened(&Place::new()).await;
    engine.enqueue(job().offer(), "").await.unwrap();
    let groups = groups_of(&*store, &[keyed("a").offer()]).await;
    let claims = vec![Claim { grant: Grant::new("a\0b".into(), None), ..claim(&["default"], 1) }];
    let applied = store.commit(Batch { groups, claims }).await.unwrap();
    assert_eq!(applied.groups, [Verdict::Applied]);
    let (head, _) = &applied.claims[0].jobs[0];
    assert_eq!(&*head.lease.as_ref().unwrap().worker, "a\u{fffd}b");
    // The name is written again with every heartbeat.
    let bearer = Bearer { lease: Some(LeaseToken(head.fence)), worker: None };
    let kept = engine.extend(vec![(head.id, bearer.clone())], None, &Queues::All).await.unwrap();
    assert!(matches!(kept[..], [Ok(Settled::Done(_))]), "{kept:?}");
    let settled = engine.complete(head.id, bearer, None).await.unwrap();
    assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
}

/// The reason for the refusal would contain the very zero that is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_with_a_zero_in_a_name_is_told_why_it_is_refused() {
    let place = Place::new();
    let (store, engine) = opened(&place).await;
    let (client, table) = (client(&url()).await, format!("{}.outbox", place.schema()));
    let insert = format!("INSERT INTO {table} (envelope) VALUES ($1::text::json)");
    for entry in [r#"{"zero \u0000": 1}"#, "[]"] {
        client.execute(&insert, &[&entry]).await.unwrap();
    }
    let read: semel_store::outbox::Read = Arc::new(|_, text| Err(text.replace("\\u0000", "\0")));
    relayed(&engine, &store, &read, 2).await;
    let rows =
        client.query(&format!("SELECT outcome, reason FROM {table} ORDER BY place"), &[]).await.unwrap();
    let told: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let invalid = |reason: &str| ("invalid".to_owned(), reason.to_owned());
    assert_eq!(told, [invalid("{\"zero \u{fffd}\": 1}"), invalid("[]")]);
}

fn ids<'a>(heads: impl IntoIterator<Item = &'a Head>) -> Vec<JobId> {
    let mut ids: Vec<JobId> = heads.into_iter().map(|head| head.id).collect();
    ids.sort_unstable();
    ids
}

/// For a key with thousands of holders, a load brings no more than a decision may need. The holders that
/// decide are among them, even if there are thousands of candidates for each role.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_thousands_hold_is_loaded_in_part() {
    let place = Place::new();
    let (store, engine) = opened(&place).await;
    let schema = place.schema();
    engine.enqueue(keyed("a").states(StateSet::FINISHED).offer(), "").await.unwrap();
    let client = client(&url()).await;
    // Some expire, the oldest have begun, some were renewed, some are in other states: each in an order of
    // its own.
    let copies = format!(
        "INSERT INTO {schema}.head SELECT (jsonb_populate_record(h, jsonb_build_object(
             'id', gen_random_uuid(), 'created_at', h.created_at + n * 37 % 1009, 'state', (ARRAY[3, 1, 4])[1 + n % 3],
             'attempt', (n * 37 % 1009 < 200)::int,
             'expires_at', CASE WHEN n % 3 = 1 THEN h.created_at + 1000000000000 + n * 31 % 97 END,
             'renewed_at', CASE WHEN n % 7 = 0 THEN h.created_at + 1000000 + n * 53 % 1999 END))).*
         FROM {schema}.head h, generate_series(1, 3000) AS n;
         UPDATE {schema}.key SET live = ARRAY(SELECT id FROM {schema}.head)"
    );
    client.batch_execute(&copies).await.unwrap();
    // Gives each holder its own period, in the lowest bytes of its hold.
    let own_holds = format!(
        "UPDATE {schema}.head h SET hold = set_byte(set_byte(h.hold, 8, (w.n % 256)::int4), 9, (w.n / 256)::int4)
             FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM {schema}.head) AS w WHERE h.id = w.id"
    );
    let looks = [(StateSet::LIVE, false, false), (StateSet::ALL, true, false), (StateSet::LIVE, false, true)];
    for (states, ended, have_own_holds) in looks {
        if have_own_holds {
            assert_eq!(client.execute(&own_holds, &[]).await.unwrap(), 3_001);
        }
        let all = store.list(Filter { limit: 4_000, ..Filter::default() }).await.unwrap().heads;
        assert_eq!(all.len(), 3_001);
        let sql = format!(
            "SELECT count(*) FROM {schema}.look(NULL, 0, 0, NULL, NULL, ARRAY[$1::bytea], ARRAY[$2::boolean], NULL, NULL, NULL) \
             WHERE part = 5"
        );
        let rows = client.query_one(&sql, &[&key("a").as_bytes().as_slice(), &ended]).await.unwrap();
        let expected = if have_own_holds { 3_001 } else { 1_001 };
        assert_eq!(rows.get::<_, i64>(0), expected, "holders are brought");
        let read = KeyRead { key: key("a"), states, all: true };
        let snapshot = store.load(&Reads { keys: vec![read], ..Reads::default() }).await.unwrap();
        let view = snapshot.peek_key(&key("a")).unwrap();
        assert!(view.too_many);
        assert_eq!(ids(&view.holders), ids(deciding(all.iter())));
    }
    let replaces = keyed("a").on_conflict("replace").offer();
    assert_eq!(engine.enqueue(replaces, "").await.unwrap(), Outcome::TooManyHolders);
}

/// For holders of any kind: what the database leaves out by its own rule never includes one that decides by
/// the core's rule.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_any_thousands_of_holders_those_that_decide_are_brought() {
    let place = Place::new();
    let (store, engine) = opened(&place).await;
    let schema = place.schema();
    let offer = keyed("a").states(StateSet::FINISHED).offer();
    let Outcome::Created(first) = engine.enqueue(offer, "").await.unwrap() else { panic!("not created") };
    let first = first.created_at.as_micros();
    let client = client(&url()).await;
    let copies = format!(
        "INSERT INTO {schema}.head SELECT (jsonb_populate_record(h, jsonb_build_object('id', gen_random_uuid()))).*
             FROM {schema}.head h, generate_series(1, 3000);
         UPDATE {schema}.key SET live = ARRAY(SELECT id FROM {schema}.head)"
    );
    client.batch_execute(&copies).await.unwrap();
    for seed in 1..=4 {
        // Few distinct values of each, so that many holders tie. Byte 2 of a hold is its disclosure.
        let any = format!(
            "SELECT setseed({seed} / 10.0);
             UPDATE {schema}.head h SET created_at = w.created_at, state = w.state, attempt = w.attempt,
                 hold = set_byte(h.hold, 2, w.disclose), expires_at = w.expires_at, renewed_at = w.created_at + w.renewed_after
             FROM (SELECT id, {first} + floor(random() * 900)::int8 AS created_at,
                     (ARRAY[3, 1, 4])[1 + floor(random() * 3)::int4] AS state, floor(random() * 2)::int8 AS attempt,
                     floor(random() * 2)::int4 AS disclose,
                     CASE WHEN random() < 0.4 THEN {first} + 1000000000000 + floor(random() * 300)::int8 END AS expires_at,
                     CASE WHEN random() < 0.3 THEN floor(random() * 2000)::int8 END AS renewed_after
                 FROM {schema}.head) AS w
             WHERE h.id = w.id"
        );
        client.batch_execute(&any).await.unwrap();
        let all = store.list(Filter { limit: 4_000, ..Filter::default() }).await.unwrap().heads;
        let expected = ids(deciding(all.iter()));
        // Otherwise the newest other holders, which are brought as well, would be all there are.
        assert!(all.len() == 3_001 && expected.len() < 1_000, "{} of {}", expected.len(), all.len());
        let read = KeyRead { key: key("a"), states: StateSet::LIVE, all: true };
        let snapshot = store.load(&Reads { keys: vec![read], ..Reads::default() }).await.unwrap();
        let view = snapshot.peek_key(&key("a")).unwrap();
        assert_eq!((ids(&view.holders), view.too_many), (expected, true), "{seed}");
    }
}

/// A lock that blocks the housekeeping of a key with many ended holders delays no answer for long;
/// housekeeping is done later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_waits_little_for_the_ended_holders_of_a_key_to_be_looked_over() {
    let place = Place::new();
    let (_, engine) = opened(&place).await;
    let schema = place.schema();
    let mut holder = client(&url()).await;
    // Blocks every update that changes a key's list and nothing else.
    let lock = format!("hashtext('{schema}')");
    let trigger = format!(
        "CREATE FUNCTION {schema}.wait() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock({lock}); RETURN NEW; END $$;
         CREATE TRIGGER wait BEFORE UPDATE ON {schema}.key FOR EACH ROW WHEN (NEW.version = OLD.version)
             EXECUTE FUNCTION {schema}.wait()"
    );
    holder.batch_execute(&trigger).await.unwrap();
    let held = holder.transaction().await.unwrap();
    held.batch_execute(&format!("SELECT pg_advisory_xact_lock({lock})")).await.unwrap();
    let ended = async {
        for _ in 0..8 {
            let Outcome::Created(head) = engine.enqueue(keyed("a").offer(), "").await.unwrap() else {
                panic!("not created")
            };
            engine.claim(claim(&["default"], 1)).await.unwrap();
            engine.complete(head.id, Bearer::default(), None).await.unwrap();
        }
    };
    tokio::time::timeout(LONG, ended).await.expect("an answer waits for house-keeping");
    held.rollback().await.unwrap();
    until(&client(&url()).await, &format!("SELECT bool_and(cardinality(done) = 1) FROM {schema}.key")).await;
}

/// A request for a key that has many ended holders already looks none of them over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ended_holders_of_a_key_are_looked_over_by_who_adds_one() {
    let place = Place::new();
    let (_, engine) = opened(&place).await;
    let schema = place.schema();
    let people = client(&url()).await;
    let fails = format!(
        "CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
         CREATE TRIGGER fail BEFORE UPDATE ON {schema}.key FOR EACH ROW WHEN (NEW.version = OLD.version)
             EXECUTE FUNCTION {schema}.fail()"
    );
    people.batch_execute(&fails).await.unwrap();
    let ended = async |times: usize| {
        for _ in 0..times {
            let Outcome::Created(head) = engine.enqueue(keyed("a").offer(), "").await.unwrap() else {
                panic!("not created")
            };
            engine.claim(claim(&["default"], 1)).await.unwrap();
            engine.complete(head.id, Bearer::default(), None).await.unwrap();
        }
    };
    let count = async || {
        let done = format!("SELECT cardinality(done) FROM {schema}.key");
        people.query_one(&done, &[]).await.unwrap().get::<_, i32>(0)
    };
    ended(8).await;
    people.batch_execute(&format!("DROP TRIGGER fail ON {schema}.key")).await.unwrap();
    engine.enqueue(keyed("a").offer(), "").await.unwrap();
    engine.enqueue(keyed("a").on_conflict("ignore").offer(), "").await.unwrap();
    assert_eq!(count().await, 8);
    let job = engine.claim(claim(&["default"], 1)).await.unwrap().remove(0);
    engine.complete(job.head.id, Bearer::default(), None).await.unwrap();
    ended(6).await;
    assert_eq!(count().await, 15);
    ended(1).await;
    until(&people, &format!("SELECT cardinality(done) = 1 FROM {schema}.key")).await;
}

/// The group that wants the lock is not searched for longer than callers wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_locked_makes_a_large_commit_busy_soon() {
    const GROUPS: usize = 400;
    let place = Place::new();
    let (store, _) = opened(&place).await;
    let groups = groups_of(&*store, &vec![job().offer(); GROUPS]).await;
    let mut holder = client(&url()).await;
    let held = holder.transaction().await.unwrap();
    held.execute(&format!("LOCK TABLE {}.head IN EXCLUSIVE MODE", place.schema()), &[]).await.unwrap();
    let batch = || Batch { groups: groups.clone(), claims: vec![claim(&["default"], 1)] };
    let applied = tokio::time::timeout(LONG, store.commit(batch())).await.expect("it looks for ever");
    let applied = applied.unwrap();
    assert_eq!(applied.groups, vec![Verdict::Busy; GROUPS]);
    assert!(applied.claims[0].jobs.is_empty());
    held.rollback().await.unwrap();
    let applied = store.commit(batch()).await.unwrap();
    assert_eq!(applied.groups, vec![Verdict::Applied; GROUPS], "nothing of it was stored");
    assert_eq!(applied.claims[0].jobs.len(), 1);
}

/// The unreadable row is left out, like one whose body cannot be read, and its lease runs out. The rest of
/// the commit is answered as applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claimed_row_that_cannot_be_read_fails_no_applied_group() {
    let place = Place::new();
    let (store, engine) = opened(&place).await;
    for priority in [2, 1] {
        engine.enqueue(job().priority(priority).offer(), "").await.unwrap();
    }
    let spoil = format!("UPDATE {}.head SET hold = '\\x07' WHERE priority = 2", place.schema());
    assert_eq!(client(&url()).await.execute(&spoil, &[]).await.unwrap(), 1);
    let groups = groups_of(&*store, &[keyed("a").offer()]).await;
    let applied = store.commit(Batch { groups, claims: vec![claim(&["default"], 2)] }).await.unwrap();
    assert_eq!(applied.groups, [Verdict::Applied]);
    let taken: Vec<i8> = applied.claims[0].jobs.iter().map(|(head, _)| head.priority).collect();
    assert_eq!(taken, [1]);
}

/// A row without a body, even as the only one in its round, must not put an empty entry into the log: that
/// would fail every commit from then on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claimed_row_without_a_body_is_in_nobodys_way() {
    let place = Place::new();
    let (store, engine) = opened(&place).await;
    for priority in [2, 1] {
        engine.enqueue(job().priority(priority).offer(), "").await.unwrap();
    }
    let spoil =
        format!("DELETE FROM {0}.body b USING {0}.head h WHERE h.id = b.id AND priority = 2", place.schema());
    assert_eq!(client(&url()).await.execute(&spoil, &[]).await.unwrap(), 1);
    let mut taken = Vec::new();
    for _ in 0..2 {
        let groups = groups_of(&*store, &[job().offer()]).await;
        let claims = vec![claim(&["default"], 1)];
        let applied = store.commit(Batch { groups, claims }).await.unwrap();
        assert_eq!(applied.groups, [Verdict::Applied]);
        taken.extend(applied.claims[0].jobs.iter().map(|(head, _)| head.priority));
    }
    assert_eq!(taken, [1]);
}

/// Reads of queues and jobs get a share of the connections, and wait for one another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_who_look_leave_connections_to_those_who_commit() {
    let place = Place::new();
    let (store, engine) = opened(&place).await;
    // Such a read waits until it is released. Commits do not run this function, nor does the first enqueue,
    // which asks which queues are bounded.
    let (mut holder, schema) = (client(&url()).await, place.schema());
    let lock = format!("pg_advisory_xact_lock(hashtext('{schema}'))");
    let slow = format!(
        "ALTER FUNCTION {schema}.queues() RENAME TO at_once;
         CREATE FUNCTION {schema}.queues()
             RETURNS TABLE (name text, what int2, n int8, paused boolean, oldest int8, settings text) LANGUAGE plpgsql AS
             $$ BEGIN PERFORM {lock}; RETURN QUERY SELECT * FROM {schema}.at_once(); END $$"
    );
    holder.batch_execute(&slow).await.unwrap();
    let held = holder.transaction().await.unwrap();
    held.batch_execute(&format!("SELECT {lock}")).await.unwrap();
    let people: Vec<_> = (0..32)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.queues().await.unwrap().len() })
        })
        .collect();
    let waiting = format!(
        "SELECT count(*) >= 2 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%\"{}\".queues%'",
        place.schema()
    );
    until(&client(&url()).await, &waiting).await;
    for number in 0..20 {
        let offer = keyed(&format!("{number}")).offer();
        let outcome = tokio::time::timeout(LONG, engine.enqueue(offer, "")).await;
        assert!(matches!(outcome, Ok(Ok(Outcome::Created(_)))), "{outcome:?}");
    }
    held.rollback().await.unwrap();
    for looks in people {
        assert_eq!(looks.await.unwrap(), 1);
    }
}

/// The head of a remembered job stays, so no other job can get its id. Only a head that is gone for good must
/// make earlier decisions stale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_of_jobs_whose_keys_are_remembered_has_nobody_decide_again() {
    let (place, clock) = (Place::new(), ManualClock::default());
    let store = Arc::new(Postgres::open_with_clock(place.address(), clock.clone()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let ended = async |want: Want| {
        engine.enqueue(want.offer(), "").await.unwrap();
        let run = engine.claim(claim(&["default"], 1)).await.unwrap().remove(0);
        engine.complete(run.head.id, Bearer::default(), None).await.unwrap();
        clock.advance(Duration::from_secs(24 * 3_600));
    };
    let late =
        async |number: u32| groups_of(&*store, &[job().queue("late").id(foreign_id(number)).offer()]).await;
    let purged = async || assert_eq!(Purge.run_once(engine.store()).await.unwrap().moved, 1);
    let told = async |groups: Vec<Group>| {
        store.commit(Batch { groups, claims: Vec::new() }).await.unwrap().groups[0]
    };
    ended(keyed("a").states(StateSet::ALL)).await;
    let (other, same) = (late(1).await, late(2).await);
    purged().await;
    assert_eq!(told(other).await, Verdict::Applied);
    assert_eq!(told(same).await, Verdict::Applied);
    // First a job whose key is remembered takes the id meanwhile, then one without a key, which is purged for
    // good.
    for (number, is_remembered) in [(3, true), (4, false)] {
        let (other, same) = (late(10 + number).await, late(number).await);
        let want = if is_remembered { keyed("b").states(StateSet::ALL) } else { job() };
        ended(want.id(foreign_id(number))).await;
        purged().await;
        assert_eq!(told(same).await, Verdict::Stale, "{number}");
        assert_eq!(told(other).await, if is_remembered { Verdict::Applied } else { Verdict::Stale });
    }
}

/// There may be one such row for each of many thousand limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_limits_are_not_read_by_those_who_look_at_queues() {
    let place = Place::new();
    let (store, engine) = opened(&place).await;
    engine.enqueue(job().offer(), "").await.unwrap();
    let (client, schema) = (client(&url()).await, place.schema());
    let rows = format!(
        "INSERT INTO {schema}.queue (name, paused, settings, version) SELECT name, false, '{{}}', 7
             FROM unnest(ARRAY['set', '~limit/a', '~worker/a']) AS w(name)"
    );
    assert_eq!(client.execute(&rows, &[]).await.unwrap(), 3);
    let mut names = store.queues().await.unwrap();
    names.sort_by(|one, other| one.row.name.cmp(&other.row.name));
    let names: Vec<&str> = names.iter().map(|queue| queue.row.name.as_str()).collect();
    assert_eq!(names, ["default", "set"]);
    // From here on reading the row of a limit is an error.
    let refuse = format!(
        "CREATE FUNCTION {schema}.refused() RETURNS int8 LANGUAGE plpgsql AS $$ BEGIN RAISE 'read'; END $$;
         ALTER TABLE {schema}.queue RENAME TO kept;
         CREATE VIEW {schema}.queue AS SELECT name, paused, settings,
             CASE WHEN name LIKE '~%' THEN {schema}.refused() ELSE version END AS version FROM {schema}.kept"
    );
    client.batch_execute(&refuse).await.unwrap();
    let set = store.settings().await.unwrap();
    let set: Vec<&str> = set.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(set, ["set"]);
}

/// However many rows it does not show, and for whatever reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_looks_at_a_bounded_number_of_rows() {
    let place = Place::new();
    let (store, engine) = opened(&place).await;
    let Outcome::Created(oldest) = engine.enqueue(keyed("a").offer(), "").await.unwrap() else {
        panic!("not created")
    };
    let (client, schema) = (client(&url()).await, place.schema());
    let copies = format!(
        "INSERT INTO {schema}.head SELECT (jsonb_populate_record(h, jsonb_build_object('key', NULL,
             'id', 'ffffffff-ffff-7fff-bfff-' || lpad(n::text, 12, '0')))).*
         FROM {schema}.head h, generate_series(1, 6000) AS n"
    );
    assert_eq!(client.execute(&copies, &[]).await.unwrap(), 6_000);
    let all = Filter { limit: 1_000, ..Filter::default() };
    for filter in [Filter { with_key: true, ..all.clone() }, all] {
        let first = store.list(filter.clone()).await.unwrap();
        assert!(first.heads.is_empty() && first.next.is_some(), "{} {:?}", first.heads.len(), first.next);
        let rest = store.list(Filter { before: first.next, ..filter }).await.unwrap();
        assert_eq!(rest.heads.iter().map(|head| head.id).collect::<Vec<_>>(), [oldest.id]);
        assert_eq!(rest.next, None);
        // In the next round these rows have no job any more, only a remembered key.
        let remembered = format!("UPDATE {schema}.head SET slot = -1 WHERE key IS NULL");
        client.execute(&remembered, &[]).await.unwrap();
    }
}

/// Each was stored in a transaction of its own, at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_is_a_jobs_and_an_absorbed_requests_is_the_jobs() {
    let (place, clock) = (Place::new(), ManualClock::default());
    let store = Arc::new(Postgres::open_with_clock(place.address(), clock.clone()).await.unwrap());
    let engine = Engine::without_duties(store).unwrap();
    for number in [1, 2] {
        engine.enqueue(job().id(foreign_id(number)).offer(), "").await.unwrap();
    }
    let absorbed = format!(
        "INSERT INTO {schema}.absorbed (id, job) SELECT id, gen_random_uuid() FROM {schema}.head",
        schema = place.schema()
    );
    assert_eq!(client(&url()).await.execute(&absorbed, &[]).await.unwrap(), 2);
    assert_eq!(engine.claim(claim(&["default"], 2)).await.unwrap().len(), 2);
    let failed = engine.fail(foreign_id(1), Bearer::default(), Report::default()).await.unwrap();
    assert!(matches!(failed, Settled::Done(_)), "{failed:?}");
    clock.advance(Duration::from_secs(24 * 3_600));
    assert_eq!(Reap.run_once(engine.store()).await.unwrap().moved, 1);
}
