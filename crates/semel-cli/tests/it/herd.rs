//! Many connections, over three real servers on one store, that want the same keys at once.
//! `SEMEL_HERD_ROUNDS` and `SEMEL_OPPOSITE_ROUNDS` set the number of rounds.

use semel_client::{Client, HeaderMap, Method};
use semel_testkit::patience::rounds;
use semel_testkit::races::at_once;
use semel_testkit::{database, redis};
use serde_json::{Value, json};

use crate::run::{Folder, Server};

const SERVERS: usize = 3;
const CONNECTIONS: usize = 50;
/// The keys that two batches go through, from opposite ends.
const KEYS: usize = 1_000;

async fn post(client: Client, path: &'static str, body: String) -> (u16, Value) {
    let told = client.request(Method::POST, path, Some(body.into()), HeaderMap::new()).await.unwrap();
    (told.status.as_u16(), serde_json::from_slice(&told.body).unwrap())
}

/// Four partitions.
fn divided() -> String {
    format!("{}&partitions=4", redis::store_url())
}

struct Herd {
    folder: Folder,
    servers: Vec<Server>,
}

impl Herd {
    fn start(store: &str) -> Self {
        let folder = Folder::new();
        let begun = |_| {
            let server = Server::start(&folder, &["--store", store]);
            // Nothing is stored yet, which is all that they warn of.
            server.log_until("the store is empty");
            server
        };
        let servers = (0..SERVERS).map(begun).collect();
        Self { folder, servers }
    }

    /// A connection of its own, to the next server.
    fn client(&self, number: usize) -> Client {
        Client::new(&self.servers[number % SERVERS].url).unwrap()
    }

    /// Exactly this many jobs were created, and no server logged anything about it.
    fn end(self, created: usize) {
        let queues = self.folder.json(&["queues", "--server", &self.servers[0].url]);
        assert_eq!(queues["queues"][0]["created"], created);
        for server in self.servers {
            let (status, _, log) = server.stop();
            assert_eq!(status.code(), Some(0), "{log}");
            assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
        }
    }
}

/// One job is created; all other callers are told of it, by whichever server.
async fn who_want_one_key(store: &str) {
    let herd = Herd::start(store);
    let clients: Vec<Client> = (0..CONNECTIONS).map(|number| herd.client(number)).collect();
    let rounds = rounds("SEMEL_HERD_ROUNDS", 40_usize);
    for round in 0..rounds {
        let (strategy, otherwise) = if round % 2 == 0 { ("reject", 409) } else { ("ignore", 200) };
        let unique = json!({ "key": format!("herd-{round}"), "on_conflict": strategy });
        let body = json!({ "type": "a.b", "args": [round], "options": { "unique": unique } }).to_string();
        let told =
            at_once(CONNECTIONS, |number| post(clients[number].clone(), "/ojs/v1/jobs", body.clone())).await;
        let winners: Vec<&Value> =
            told.iter().filter(|told| told.0 == 201).map(|told| &told.1["job"]["id"]).collect();
        assert_eq!(winners.len(), 1, "round {round}: {told:?}");
        for (status, body) in told.iter().filter(|told| told.0 != 201) {
            let named = if strategy == "reject" {
                &body["error"]["details"]["existing_job_id"]
            } else {
                &body["job"]["id"]
            };
            assert_eq!((*status, named), (otherwise, winners[0]), "round {round}: {body}");
        }
    }
    herd.end(rounds);
}

/// Each key gets one job, and there is no deadlock.
async fn who_come_from_both_ends(store: &str) {
    let herd = Herd::start(store);
    let rounds = rounds("SEMEL_OPPOSITE_ROUNDS", 4_usize);
    for round in 0..rounds {
        let forth: Vec<Value> = (0..KEYS)
            .map(|key| {
                let unique = json!({ "key": format!("{round}-{key}"), "on_conflict": "ignore" });
                json!({ "type": "a.b", "args": [key], "options": { "unique": unique } })
            })
            .collect();
        let back: Vec<Value> = forth.iter().rev().cloned().collect();
        let bodies = [forth, back].map(|jobs| json!({ "jobs": jobs }).to_string());
        let told = at_once(2, |number| {
            post(herd.client(round + number), "/ojs/v1/jobs/bulk", bodies[number].clone())
        })
        .await;
        let created = told.iter().map(|(status, body)| {
            assert!(matches!(status, 200 | 201), "{status} {body}");
            body["counts"]["inserted"].as_u64().unwrap_or_else(|| panic!("{body}"))
        });
        assert_eq!(created.sum::<u64>(), KEYS as u64, "round {round}");
    }
    herd.end(rounds * KEYS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_connections_to_three_servers_on_postgresql_one_creates_the_job() {
    who_want_one_key(&database::store_url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_connections_to_three_servers_on_redis_one_creates_the_job() {
    who_want_one_key(&redis::store_url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulks_in_opposite_orders_at_servers_on_postgresql_end() {
    who_come_from_both_ends(&database::store_url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulks_in_opposite_orders_at_servers_on_redis_end() {
    who_come_from_both_ends(&redis::store_url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_connections_to_three_servers_on_a_divided_redis_one_creates_the_job() {
    who_want_one_key(&divided()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulks_in_opposite_orders_at_servers_on_a_divided_redis_end() {
    who_come_from_both_ends(&divided()).await;
}
