//! Jobs that any program inserts into the outbox, in its own transaction.

use std::time::Duration;

use semel::{Enqueued, Envelope, JobState, Semel};
use semel_testkit::database::{store_url, url};
use tokio_postgres::{Client, NoTls};

use crate::drivers::{Driver, on_every_driver};
use crate::harness::{Welcome, soon};

on_every_driver! {
    an_entry_goes_with_its_transaction_at_every_level,
}

async fn client() -> Client {
    let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Waits until every entry is relayed; returns how often each outcome was written.
async fn relayed(client: &Client, schema: &str) -> Vec<(String, i64)> {
    let waiting = format!("SELECT count(*) FROM {schema}.outbox WHERE outcome IS NULL");
    soon(async {
        while client.query_one(&waiting, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let outcomes = format!("SELECT outcome, count(*) FROM {schema}.outbox GROUP BY outcome ORDER BY outcome");
    let rows = client.query(&outcomes, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_is_relayed_with_the_transaction_that_wrote_it_and_told_what_became_of_it() {
    let url = store_url();
    let schema = url.split("schema=").nth(1).unwrap();
    let semel = Semel::open(&url).relay_outbox().await.unwrap();
    let mut client = client().await;
    let insert = format!("INSERT INTO {schema}.outbox (envelope) VALUES ($1::text::json) RETURNING id::text");
    let transaction = client.transaction().await.unwrap();
    transaction.query_one(&insert, &[&r#"{"type": "a.b", "args": ["taken back"]}"#]).await.unwrap();
    transaction.rollback().await.unwrap();
    let unique =
        r#"{"type": "a.b", "args": [1], "options": {"unique": {"keys": ["args"], "on_conflict": "ignore"}}}"#;
    let mut ids = Vec::new();
    for text in [unique, unique, r#"{"args": []}"#] {
        ids.push(client.query_one(&insert, &[&text]).await.unwrap().get::<_, String>(0));
    }
    let outcomes = relayed(&client, schema).await;
    let expected = [("created", 1), ("existing", 1), ("invalid", 1)];
    assert_eq!(outcomes, expected.map(|(outcome, count)| (outcome.to_owned(), count)));
    let job = semel.job(semel::JobId::parse(&ids[0], "").unwrap()).load().await.unwrap().unwrap();
    assert_eq!((job.state(), job.job_type()), (JobState::Available, "a.b"));
    let second = format!("SELECT job::text, reason FROM {schema}.outbox WHERE id::text = $1");
    let row = client.query_one(&second, &[&ids[1]]).await.unwrap();
    assert_eq!(row.get::<_, Option<String>>(0), Some(ids[0].clone()));
    let row = client.query_one(&second, &[&ids[2]]).await.unwrap();
    assert!(row.get::<_, Option<String>>(1).unwrap().contains("/type"));
    semel.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_offered_in_the_order_they_were_inserted_whatever_their_ids() {
    let url = store_url();
    let schema = url.split("schema=").nth(1).unwrap();
    let semel = Semel::open(&url).relay_outbox().await.unwrap();
    let mut client = client().await;
    let insert =
        format!("INSERT INTO {schema}.outbox (id, envelope) VALUES ($1::text::uuid, $2::text::json)");
    let unique =
        r#"{"type": "a.b", "args": [1], "options": {"unique": {"keys": ["args"], "on_conflict": "ignore"}}}"#;
    let id = |n: u8| format!("01900000-0000-7000-8000-0000000000{n:02x}");
    // One transaction, so that one relay takes all of them together.
    let together = client.transaction().await.unwrap();
    for n in (0..20).rev() {
        together.execute(&insert, &[&id(n), &unique]).await.unwrap();
    }
    together.commit().await.unwrap();
    relayed(&client, schema).await;
    let created = format!("SELECT id::text FROM {schema}.outbox WHERE outcome = 'created'");
    let rows = client.query(&created, &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<String>>(), [id(19)]);

    // And ids from the database ascend within one session.
    let ids = format!(
        "SELECT {schema}.uuid_v7()::text, (extract(epoch FROM clock_timestamp()) * 1000)::int8 \
         FROM generate_series(1, 100)"
    );
    let mut made = Vec::new();
    for row in client.query(&ids, &[]).await.unwrap() {
        let id: String = row.get(0);
        semel::JobId::parse(&id, "").unwrap();
        let millis = i64::from_str_radix(&id.replace('-', "")[..12], 16).unwrap();
        assert!((millis - row.get::<_, i64>(1)).abs() < 60_000, "{id} is not of this minute");
        made.push(id);
    }
    assert!(made[0][..18] <= made[99][..18], "{} {}", made[0], made[99]);
    semel.close().await.unwrap();
}

/// A job with such an id could never be referred to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_whose_id_no_job_may_have_is_invalid() {
    let url = store_url();
    let schema = url.split("schema=").nth(1).unwrap();
    let semel = Semel::open(&url).relay_outbox().await.unwrap();
    let client = client().await;
    let ids = ["f81d4fae-7dec-4d65-a765-00a0c91e6bf6", "00000000-0000-0000-8000-000000000001"];
    for id in ids {
        let insert = format!(
            "INSERT INTO {schema}.outbox (id, envelope) VALUES ('{id}', '{{\"type\": \"a.b\", \"args\": []}}')"
        );
        client.batch_execute(&insert).await.unwrap();
    }
    assert_eq!(relayed(&client, schema).await, [("invalid".to_owned(), 2)]);
    let told = format!("SELECT reason, job IS NULL FROM {schema}.outbox");
    for row in client.query(&told, &[]).await.unwrap() {
        assert!(row.get::<_, &str>(0).contains("UUIDv7") && row.get::<_, bool>(1));
    }
    let stored = format!("SELECT count(*) FROM {schema}.head");
    assert_eq!(client.query_one(&stored, &[]).await.unwrap().get::<_, i64>(0), 0);
    semel.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_servers_relay_each_entry_once_and_a_key_that_is_held_holds_up_no_other() {
    let url = store_url();
    let schema = url.split("schema=").nth(1).unwrap();
    let open = async || Semel::open(&url).relay_outbox().await.unwrap();
    let (here, there) = (open().await, open().await);
    let (mut holder, client) = (client().await, client().await);
    let held = holder.transaction().await.unwrap();
    here.in_transaction(&held).enqueue(Welcome::of(7)).await.unwrap();
    let welcome = "jsonb_build_object('type', 'email.welcome', 'args', jsonb_build_array(jsonb_build_object('user_id', n)), \
                   'options', '{\"unique\": {\"keys\": [\"type\", \"args\"], \"args_keys\": [\"user_id\"]}}'::jsonb)";
    let insert = format!(
        "INSERT INTO {schema}.outbox (envelope) SELECT {welcome}::json FROM generate_series(1, 300) AS n"
    );
    client.execute(&insert, &[]).await.unwrap();
    let others = format!("SELECT count(*) FROM {schema}.outbox WHERE outcome = 'created'");
    soon(async {
        while client.query_one(&others, &[]).await.unwrap().get::<_, i64>(0) < 299 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    held.commit().await.unwrap();
    let outcomes = relayed(&client, schema).await;
    let expected = [("created", 299), ("rejected", 1)];
    assert_eq!(outcomes, expected.map(|(outcome, count)| (outcome.to_owned(), count)));
    let stored = format!("SELECT count(*) FROM {schema}.head");
    assert_eq!(client.query_one(&stored, &[]).await.unwrap().get::<_, i64>(0), 300);
    here.close().await.unwrap();
    there.close().await.unwrap();
}

/// Entries are decided by the relaying program's templates, so a program without templates relays none unless
/// told to.
#[cfg(feature = "templates")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_was_not_told_to_relay_leaves_entries_to_who_has_the_templates() {
    let url = store_url();
    let schema = url.split("schema=").nth(1).unwrap();
    let folder = semel_testkit::TempDir::new();
    let template = "namespace: order\nname: ship\nunique:\n  keys: [args]\n  on_conflict: ignore\n";
    std::fs::write(folder.path().join("ship.yaml"), template).unwrap();
    let beside = Semel::open(&url).await.unwrap();
    let relays = Semel::open(&url).templates(folder.path()).relay_outbox().await.unwrap();
    let client = client().await;
    let insert = format!("INSERT INTO {schema}.outbox (envelope) VALUES ($1::text::json)");
    for n in 0..10 {
        for _ in 0..2 {
            // One at a time, so that each may be taken by another program.
            let entry = format!(r#"{{"type": "order.ship", "args": [{n}]}}"#);
            client.execute(&insert, &[&entry]).await.unwrap();
            relayed(&client, schema).await;
        }
    }
    let outcomes = relayed(&client, schema).await;
    assert_eq!(outcomes, [("created", 10), ("existing", 10)].map(|(outcome, n)| (outcome.to_owned(), n)));
    beside.close().await.unwrap();
    relays.close().await.unwrap();
}

/// However many there are, the entries behind them are relayed in the same round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_key_that_is_held_do_not_stop_those_behind_them() {
    let url = store_url();
    let schema = url.split("schema=").nth(1).unwrap();
    let semel = Semel::open(&url).relay_outbox().await.unwrap();
    let (mut holder, client) = (client().await, client().await);
    let held = holder.transaction().await.unwrap();
    semel.in_transaction(&held).enqueue(Welcome::of(1)).await.unwrap();
    // More entries than one piece of the relay.
    let insert = format!(
        "INSERT INTO {schema}.outbox (envelope) SELECT jsonb_build_object('type', 'email.welcome', \
         'args', jsonb_build_array(jsonb_build_object('user_id', CASE WHEN n <= 230 THEN 1 ELSE n END)), \
         'options', '{{\"unique\": {{\"keys\": [\"type\", \"args\"], \"args_keys\": [\"user_id\"], \
         \"on_conflict\": \"ignore\"}}}}'::jsonb)::json FROM generate_series(1, 240) AS n"
    );
    client.execute(&insert, &[]).await.unwrap();
    let others = format!("SELECT count(*) FROM {schema}.outbox WHERE outcome = 'created'");
    soon(async {
        while client.query_one(&others, &[]).await.unwrap().get::<_, i64>(0) < 10 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    held.rollback().await.unwrap();
    let outcomes = relayed(&client, schema).await;
    assert_eq!(outcomes, [("created", 11), ("existing", 229)].map(|(outcome, n)| (outcome.to_owned(), n)));
    semel.close().await.unwrap();
}

/// Whatever the caller's isolation level, and even beside another transaction with the same key: the entry
/// belongs to the transaction, and is decided after its commit. This is how programs join that use an object
/// mapper and none of our drivers.
async fn an_entry_goes_with_its_transaction_at_every_level<D: Driver>() {
    let url = store_url();
    let schema = url.split("schema=").nth(1).unwrap();
    let semel = Semel::open(&url).relay_outbox().await.unwrap();
    let client = client().await;
    let table = format!("CREATE TABLE {schema}.orders (n int PRIMARY KEY)");
    client.batch_execute(&table).await.unwrap();
    let write = |n: usize| {
        let envelope = r#"{"type": "order.paid", "args": [7], "options": {"unique_key": "order-7"}}"#;
        format!(
            "INSERT INTO {schema}.orders VALUES ({n}); \
             INSERT INTO {schema}.outbox (envelope) VALUES ('{envelope}'::json)"
        )
    };
    let levels = [
        "BEGIN ISOLATION LEVEL READ COMMITTED",
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "BEGIN ISOLATION LEVEL SERIALIZABLE",
    ];
    for (n, level) in levels.into_iter().enumerate() {
        let (mut one, mut other) = (D::connect().await, D::connect().await);
        for db in [&mut one, &mut other] {
            db.begin_by(level).await;
            // The snapshot is older than everything the other transaction writes.
            assert_eq!(db.ask("SELECT 1".to_owned()).await, "1");
        }
        one.execute(write(10 * n)).await;
        other.execute(write(10 * n + 1)).await;
        one.end(true).await;
        // After a rollback there is neither the order nor its job.
        other.end(n == 1).await;
    }
    let outcomes = relayed(&client, schema).await;
    assert_eq!(outcomes, [("created", 1), ("existing", 3)].map(|(outcome, n)| (outcome.to_owned(), n)));
    let orders = format!("SELECT count(*) FROM {schema}.orders");
    assert_eq!(client.query_one(&orders, &[]).await.unwrap().get::<_, i64>(0), 4);
    semel.close().await.unwrap();
}

/// The job made from an entry is a duplicate for the same job offered in any other way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_has_the_key_that_the_same_job_has_by_every_other_way() {
    let url = store_url();
    let schema = url.split("schema=").nth(1).unwrap();
    let semel = Semel::open(&url).relay_outbox().await.unwrap();
    let mut client = client().await;
    let text = r#"{"type": "a.b", "args": [{"b": 1.0, "a": "caf\u00e9"}], "meta": {"tenant": "t"}, "options":
        {"unique": {"keys": ["type", "args", "meta"], "meta_keys": ["tenant"], "on_conflict": "ignore"}}}"#;
    let insert = format!("INSERT INTO {schema}.outbox (envelope) VALUES ($1::text::json) RETURNING id::text");
    let id: String = client.query_one(&insert, &[&text]).await.unwrap().get(0);
    assert_eq!(relayed(&client, schema).await, [("created".to_owned(), 1)]);
    let same = text.replace(r#"{"b": 1.0, "a": "caf\u00e9"}"#, r#"{"a":"cafe\u0301","b":1}"#);
    assert_ne!(same, text);
    let found = |outcome: Enqueued| {
        assert!(matches!(&outcome, Enqueued::Existing(_)), "{outcome:?}");
        outcome.id().unwrap().to_string()
    };
    for text in [text, &same] {
        assert_eq!(found(semel.enqueue(Envelope::from_json(text)).await.unwrap()), id);
        let many = semel.enqueue_many(vec![Envelope::from_json(text)]).await.unwrap();
        assert_eq!(found(many.outcomes.into_iter().next().unwrap().unwrap()), id);
        let transaction = client.transaction().await.unwrap();
        let inside = semel.in_transaction(&transaction);
        assert_eq!(found(inside.enqueue(Envelope::from_json(text)).await.unwrap()), id);
        drop(inside);
        transaction.commit().await.unwrap();
    }
    let job = semel.job(semel::JobId::parse(&id, "").unwrap()).load().await.unwrap().unwrap();
    assert_eq!(job.state(), JobState::Available);
    semel.close().await.unwrap();
}
