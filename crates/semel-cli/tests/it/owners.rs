//! One process owns a file, whatever name another process finds it by.

use serde_json::json;

use crate::requests;
use crate::run::{Folder, Server};

/// A cleanup may delete an old lock, and a backup may make a hard link: it is still the same file.
#[test]
fn a_second_server_of_one_file_is_refused_though_its_lock_is_gone() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let put = server.post("/ojs/v1/jobs", &json!({ "type": "a.b", "args": [1] }));
    let id = put["job"]["id"].as_str().unwrap().to_owned();
    std::fs::remove_file(folder.path().join("semel.db.lock")).unwrap();
    std::fs::hard_link(folder.path().join("semel.db"), folder.path().join("link.db")).unwrap();
    for words in [
        &["serve", "--listen", "127.0.0.1:0"][..],
        &["serve", "--listen", "127.0.0.1:0", "--store", "sqlite:link.db"],
        &["enqueue", "a.b", "2"],
        &["enqueue", "a.b", "2", "--store", "sqlite:link.db"],
    ] {
        let refused = folder.run(words);
        assert_eq!(refused.code, 5, "{words:?}: {refused:?}");
        for part in ["open in another process", ".lock was deleted", "hard link", "lsof"] {
            assert!(refused.err.contains(part), "{words:?}, {part}: {}", refused.err);
        }
    }
    // The owner goes on.
    let found = requests::ask(&server.url, &format!("GET /ojs/v1/jobs/{id}"), "", "").unwrap();
    assert!(found.0 == 200 && found.1.contains("available"), "{found:?}");
    assert!(server.stop().0.success());
    assert_eq!(folder.json(&["jobs"])["jobs"][0]["id"], json!(id));
}
