//! Jobs: enqueue, read, cancel, activate, repeat, batch.

use serde_json::json;

use crate::harness::{Server, job};

const ID: &str = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f";

#[tokio::test]
async fn a_job_is_created_read_and_cancelled() {
    let server = Server::start().await;
    let told = server.create(&job(&json!({ "to": "ada" }), &json!({ "queue": "mail", "priority": 3 }))).await;
    let id = told.job_id().to_owned();
    assert_eq!(told.headers["location"], format!("/ojs/v1/jobs/{id}"));
    assert_eq!(
        (&told.body["job"]["args"][0]["to"], &told.body["outcome"]),
        (&"ada".into(), &"created".into())
    );
    let path = format!("/ojs/v1/jobs/{id}");
    let read = server.get(&path).await;
    assert_eq!(
        (read.status, &read.body["job"]["priority"], &read.body["id"]),
        (200, &3.into(), &id.as_str().into())
    );
    let cancelled = server.delete(&path).await;
    assert_eq!((cancelled.status, &cancelled.body["job"]["state"]), (200, &"cancelled".into()));
    assert!(
        cancelled.body["job"]["cancelled_at"].is_string() && cancelled.body["job"]["completed_at"].is_null()
    );
    let again = server.delete(&path).await;
    assert_eq!((again.status, again.code()), (409, "conflict"));
    assert_eq!(again.body["error"]["details"]["current_state"], "cancelled");
    server.stop().await;
}

#[tokio::test]
async fn a_pending_job_waits_for_its_activation() {
    let server = Server::start().await;
    let told = server.create(&job(&json!(1), &json!({ "pending": true }))).await;
    assert_eq!(told.body["job"]["state"], "pending");
    let path = format!("/ojs/v1/jobs/{}/activate", told.job_id());
    let active = server.post_text(&path, "").await;
    assert_eq!((active.status, &active.body["job"]["state"]), (200, &"available".into()));
    assert_eq!(active.body["job"]["previous_state"], "pending");
    assert_eq!(server.post_text(&path, "").await.code(), "conflict");
    server.stop().await;
}

#[tokio::test]
async fn a_lost_reply_is_answered_as_the_first_time() {
    let server = Server::start().await;
    let request = json!({ "id": ID, "type": "a.b", "args": [1], "options": { "delay_until": "+PT1H" } });
    let first = server.create(&request).await;
    assert!(!first.headers.contains_key("idempotency-replayed"));
    let again = server.create(&request).await;
    assert_eq!((again.job_id(), &again.body["outcome"]), (ID, &"repeated".into()));
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!(again.body["job"]["scheduled_at"], first.body["job"]["scheduled_at"]);
    let other = server.post("/ojs/v1/jobs", &json!({ "id": ID, "type": "a.b", "args": [2] })).await;
    assert_eq!((other.status, other.code()), (409, "duplicate"));
    assert_eq!(other.body["error"]["details"]["existing_job_id"], ID);
    assert_eq!(server.stored().await, 1);
    server.stop().await;
}

#[tokio::test]
async fn a_batch_is_stored_whole_or_not_at_all() {
    let server = Server::start().await;
    let unique = |args: i32, how: &str| json!({ "type": "a.b", "args": [args], "options": { "unique": { "keys": ["type", "args"], "on_conflict": how } } });
    let told = server
        .post("/ojs/v1/jobs/batch", &json!({ "jobs": [unique(1, "reject"), unique(1, "reject")] }))
        .await;
    assert_eq!((told.status, told.code()), (409, "duplicate"));
    assert_eq!(told.body["error"]["details"]["index"], 1);
    let told = server
        .post("/ojs/v1/jobs/batch", &json!({ "jobs": [unique(1, "reject"), { "type": "A", "args": [] }] }))
        .await;
    assert_eq!((told.status, told.pointer()), (400, "/jobs/1/type"));
    assert_eq!(told.body["error"]["details"]["index"], 1);
    assert_eq!(server.stored().await, 0);

    let held = server.create(&unique(7, "reject")).await;
    let told = server
        .post(
            "/ojs/v1/jobs/batch",
            &json!({ "jobs": [unique(6, "ignore"), unique(7, "ignore"), unique(6, "ignore")] }),
        )
        .await;
    assert_eq!((told.status, &told.body["count"]), (201, &3.into()));
    let jobs = told.body["jobs"].as_array().unwrap();
    assert_eq!((jobs[1]["id"].as_str(), &jobs[1]["deduplicated"]), (Some(held.job_id()), &true.into()));
    assert_eq!(
        (&jobs[2]["id"], &jobs[2]["deduplicated"], &jobs[2]["args"][0]),
        (&jobs[0]["id"], &true.into(), &6.into())
    );
    assert_eq!(told.body["counts"], json!({ "inserted": 1, "skipped": 2, "replaced": 0, "rejected": 0 }));
    assert_eq!(server.stored().await, 2);
    server.stop().await;
}

#[tokio::test]
async fn in_bulk_each_job_stands_for_itself() {
    let server = Server::start().await;
    let good = json!({ "type": "a.b", "args": [], "unique": {} });
    let told = server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": [good, { "type": "A" }, good] })).await;
    assert_eq!(told.status, 207);
    let results = told.body["results"].as_array().unwrap();
    assert_eq!(
        (&results[0]["status"], &results[1]["error"]["code"]),
        (&"created".into(), &"invalid_request".into())
    );
    assert_eq!(results[1]["error"]["details"]["pointer"], "/jobs/1/type");
    assert_eq!((&results[2]["error"]["code"], &results[2]["code"]), (&"duplicate".into(), &409.into()));
    assert_eq!(results[2]["error"]["details"]["existing_job_id"], results[0]["job_id"]);
    assert_eq!(told.body["counts"], json!({ "inserted": 1, "skipped": 0, "replaced": 0, "rejected": 2 }));
    assert_eq!(server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": [good] })).await.status, 422);
    let fine = json!({ "jobs": [{ "type": "a.c", "args": [] }] });
    assert_eq!(server.post("/ojs/v1/jobs/bulk", &fine).await.status, 200);
    server.stop().await;
}

/// The job refused for the duplicate id cannot point to the other one, since neither is stored.
#[tokio::test]
async fn of_two_jobs_of_one_batch_with_one_id_neither_is_named() {
    let server = Server::in_memory().await;
    let with_id = |n: u32| json!({ "type": "a.b", "args": [n], "id": ID });
    let told = server.post("/ojs/v1/jobs/batch", &json!({ "jobs": [with_id(1), with_id(2)] })).await;
    assert_eq!((told.status, told.code(), told.pointer()), (409, "duplicate", "/id"));
    let details = &told.body["error"]["details"];
    assert_eq!((&details["index"], details.get("existing_job_id")), (&1.into(), None), "{}", told.body);
    assert_eq!(server.stored().await, 0);
    // A job that was stored before is named.
    server.create(&with_id(1)).await;
    let told = server
        .post("/ojs/v1/jobs/batch", &json!({ "jobs": [{ "type": "a.c", "args": [] }, with_id(2)] }))
        .await;
    assert_eq!(told.body["error"]["details"]["existing_job_id"], ID, "{}", told.body);
    server.stop().await;
}
