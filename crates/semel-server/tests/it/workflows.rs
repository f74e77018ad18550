//! Workflows as shown while they run.

use serde_json::json;

use crate::harness::Server;

/// A step shows the job that is doing its work now, not one that was replaced.
#[tokio::test]
async fn a_step_names_the_job_that_took_the_place_of_its_own() {
    let server = Server::start().await;
    let keyed = json!({ "type": "x.a", "args": [0], "options": { "unique": { "key": "m" } } });
    let chain = json!({ "type": "chain", "steps": [keyed, { "type": "x.a", "args": [1] }] });
    let started = server.post("/ojs/v1/workflows", &chain).await;
    let path = format!("/ojs/v1/workflows/{}", started.body["workflow"]["id"].as_str().unwrap());
    let replacing = json!({ "type": "x.a", "args": [2],
        "options": { "unique": { "key": "m", "on_conflict": "replace" } } });
    for _ in 0..2 {
        let next = server.create(&replacing).await;
        let shown = server.get(&path).await;
        let step = &shown.body["workflow"]["steps"][0];
        assert_eq!((&step["job_id"], &step["state"]), (&next.job_id().into(), &"pending".into()), "{step}");
    }
    let fetched =
        server.post("/ojs/v1/workers/fetch", &json!({ "queues": ["default"], "worker_id": "w" })).await;
    let running = &fetched.body["jobs"][0]["id"];
    let shown = server.get(&path).await;
    let step = &shown.body["workflow"]["steps"][0];
    assert_eq!((&step["job_id"], &step["state"]), (running, &"active".into()), "{step}");
    server.stop().await;
}
