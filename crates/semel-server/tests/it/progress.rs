//! Progress of a run.

use serde_json::json;

use crate::harness::Server;

#[tokio::test]
async fn a_run_tells_how_far_it_has_come() {
    for server in [Server::start().await, Server::in_memory().await] {
        let id = server.create(&json!({ "type": "a.b", "args": [] })).await.job_id().to_owned();
        let path = format!("/ojs/v1/jobs/{id}/progress");
        assert_eq!(
            server.put(&path, &json!({ "progress": 0.1 })).await.code(),
            "conflict",
            "it does not run"
        );
        let lease = server.take("default", "w").await["lease"].clone();
        assert_eq!(server.get(&path).await.body["progress"], json!(null));
        for (sent, kept) in [(json!(0.5), json!(0.5)), (json!(1.5), json!(1)), (json!(-3), json!(0))] {
            let told = server.put(&path, &json!({ "progress": sent, "message": "on", "lease": lease })).await;
            assert_eq!(told.status, 200, "{}", told.body);
            assert_eq!(told.body["progress"].as_f64(), kept.as_f64());
        }
        let percent = json!({ "job_id": id, "progress": 75, "data": { "page": 3 } });
        assert_eq!(server.post("/ojs/v1/workers/progress", &percent).await.body["progress"], 0.75);
        let seen = server.get(&path).await.body;
        assert_eq!((&seen["progress"], &seen["data"]["page"]), (&json!(0.75), &json!(3)));
        for (body, place) in [(json!({}), "/progress"), (json!({ "progress": "half" }), "/progress")] {
            let told = server.put(&path, &body).await;
            assert_eq!((told.status, told.pointer()), (400, place));
        }
        let stale = json!({ "progress": 1, "lease": "l1-1" });
        assert_eq!(server.put(&path, &stale).await.code(), "conflict", "another run's lease");
        assert_eq!(server.post("/ojs/v1/workers/ack", &json!({ "job_id": id })).await.status, 200);
        assert_eq!(server.put(&path, &json!({ "progress": 1 })).await.code(), "conflict", "it has ended");
        assert_eq!(server.get(&path).await.body["progress"], 0.75);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_run_is_ended_by_the_path_of_its_job_as_well() {
    let server = Server::in_memory().await;
    for (verb, body, state) in [
        ("ack", json!({ "result": 7 }), "completed"),
        ("nack", json!({ "error": { "code": "x", "message": "x", "retryable": false } }), "discarded"),
    ] {
        let id = server.create(&json!({ "type": "a.b", "args": [] })).await.job_id().to_owned();
        server.take("default", "w").await;
        let other = json!({ "job_id": "01961111-aaaa-7bbb-8ccc-dddddddddddd", "error": {} });
        let told = server.post(&format!("/ojs/v1/jobs/{id}/{verb}"), &other).await;
        assert_eq!((told.status, told.pointer()), (400, "/job_id"));
        let told = server.post(&format!("/ojs/v1/jobs/{id}/{verb}"), &body).await;
        assert_eq!(
            (told.status, &told.body["state"], &told.body["job"]["state"]),
            (200, &json!(state), &json!(state))
        );
    }
    server.stop().await;
}
