//! The guide's page about security: a server does its work with no more rights than the page gives it.

use semel_testkit::{database, redis};

use crate::run::{Folder, Server};

const PAGE: &str = include_str!("../../../../docs/guide/security.md");

/// The address with another user.
fn with_user(url: &str, user: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let host = rest.find('@').filter(|at| !rest[..*at].contains('/')).map_or(rest, |at| &rest[at + 1..]);
    format!("{scheme}://{user}@{host}")
}

/// Enqueues a job twice, and looks at it.
fn use_it(folder: &Folder, server: &Server) {
    let job = folder.json(&["enqueue", "a.b", "1", "--key", "k", "--server", &server.url]);
    let again = folder.run(&["enqueue", "a.b", "1", "--key", "k", "--server", &server.url]);
    assert_eq!(again.code, 3, "{}", again.err);
    let id = job["job"]["id"].as_str().unwrap();
    assert_eq!(folder.json(&["job", id, "--server", &server.url])["state"], "available");
    assert_eq!(folder.json(&["queues", "--server", &server.url])["queues"][0]["name"], "default");
    folder.json(&["job", id, "cancel", "--server", &server.url]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgresql_with_the_rights_of_the_page() {
    let (_, sql) = PAGE.split_once("```sql\n").unwrap();
    let (sql, _) = sql.split_once("```").unwrap();
    let schema = database::schema_name();
    let sql = sql.replace("SCHEMA semel", &format!("SCHEMA {schema}"));
    let sql = sql
        .replace("semel_owner", &format!("{schema}_owner"))
        .replace("semel_server", &format!("{schema}_server"));
    let (client, connection) =
        tokio_postgres::connect(&database::url(), tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client.batch_execute(&sql).await.unwrap();

    let folder = Folder::new();
    let at = |url: &str| format!("{url}{}schema={schema}", if url.contains('?') { '&' } else { '?' });
    let server = at(&with_user(&database::url(), &format!("{schema}_server")));
    let early = folder.run(&["serve", "--listen", "127.0.0.1:0", "--store", &server]);
    assert_eq!(early.code, 1, "the server's user may not make the schema: {}", early.err);
    // As on the page: a user that may become the owner.
    assert!(PAGE.contains("?options=-c%20role%3Dsemel_owner'"));
    let owner = format!("{}&options=-c%20role%3D{schema}_owner", at(&database::url()));
    let made = folder.run(&["migrate", "run", "--store", &owner]);
    assert_eq!(made.code, 0, "{}", made.err);
    let store = server;
    let server = Server::start(&folder, &["--store", &store]);
    use_it(&folder, &server);
    // It may not replace an earlier build's functions, and need not replace a later one's.
    for mark in ["functions 0 0", "functions 4000000000 0"] {
        client.batch_execute(&format!("COMMENT ON TABLE {schema}.migration IS '{mark}'")).await.unwrap();
        use_it(&folder, &Server::start(&folder, &["--store", &store]));
    }

    // A program with an outbox: it cannot work without the rights on the page, and can do nothing else with
    // them.
    let shop = format!("{schema}_shop");
    // Every user has this right unless it was revoked.
    let revoke = format!("REVOKE EXECUTE ON FUNCTION {schema}.uuid_v7() FROM PUBLIC");
    client.batch_execute(&format!("CREATE ROLE {shop} LOGIN; {revoke}")).await.unwrap();
    let (program, its_connection) =
        tokio_postgres::connect(&with_user(&database::url(), &shop), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(its_connection);
    let insert =
        format!("INSERT INTO {schema}.outbox (envelope) VALUES ('{{\"type\": \"a.b\", \"args\": [2]}}')");
    let (_, grants) = PAGE.rsplit_once("```sql\n").unwrap();
    let (grants, _) = grants.split_once("```").unwrap();
    let here = |grants: &str| {
        let grants = grants.replace("SCHEMA semel", &format!("SCHEMA {schema}"));
        grants.replace(" semel.", &format!(" {schema}.")).replace("TO shop", &format!("TO {shop}"))
    };
    let grants = here(grants);
    assert_eq!(grants.lines().count(), 3, "{grants}");
    for grant in grants.lines() {
        program.batch_execute(&insert).await.unwrap_err();
        client.batch_execute(grant).await.unwrap();
    }
    program.batch_execute(&insert).await.unwrap();
    program.batch_execute(&format!("SELECT id FROM {schema}.outbox")).await.unwrap_err();
    // A program that reads what became of its entries: it cannot without the right on the page, and sees no
    // args with it.
    let insert = format!("{insert} RETURNING id");
    program.batch_execute(&insert).await.unwrap_err();
    let (_, grant) = PAGE.split_once("`GRANT SELECT").unwrap();
    let (grant, _) = grant.split_once('`').unwrap();
    client.batch_execute(&here(&format!("GRANT SELECT{grant}"))).await.unwrap();
    program.batch_execute(&insert).await.unwrap();
    program.batch_execute(&format!("SELECT outcome, job, reason FROM {schema}.outbox")).await.unwrap();
    program.batch_execute(&format!("SELECT envelope FROM {schema}.outbox")).await.unwrap_err();
    drop(client);
    connection.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_with_the_rights_of_the_page() {
    let line = PAGE.lines().find_map(|line| line.strip_prefix("    ACL SETUSER semel ")).unwrap();
    let prefix = redis::prefix();
    let user = format!("user-{prefix}");
    let mut command = ::redis::cmd("ACL");
    command.arg("SETUSER").arg(&user);
    for word in line.split_whitespace() {
        command.arg(word.replace(">…", ">secret").replace("semel", &prefix));
    }
    let client = ::redis::Client::open(redis::url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    command.query_async::<()>(&mut connection).await.unwrap();

    let folder = Folder::new();
    let store = format!(
        "{}/0?prefix={prefix}",
        with_user(&redis::url(), &format!("{user}:secret")).trim_end_matches('/')
    );
    let server = Server::start(&folder, &["--store", &store]);
    use_it(&folder, &server);
    // It may not touch another store's keys.
    let other = store.replace(&format!("prefix={prefix}"), &format!("prefix=x{prefix}"));
    let refused = folder.run(&["serve", "--listen", "127.0.0.1:0", "--store", &other]);
    assert_eq!(refused.code, 1, "{}", refused.err);
    // Nor may it act on all keys at once. Redis is only asked whether it may, for others are using it.
    let lists = [
        &["FLUSHALL"][..],
        &["FLUSHDB"],
        &["SWAPDB", "0", "1"],
        &["CLIENT", "KILL", "127.0.0.1:1"],
        &["KEYS", "*"],
    ];
    for words in lists {
        let mut asked = ::redis::cmd("ACL");
        asked.arg("DRYRUN").arg(&user).arg(words);
        let said = asked.query_async::<String>(&mut connection).await;
        assert!(said.as_ref().is_ok_and(|said| said.contains("no permissions")), "{words:?}: {said:?}");
    }
}
