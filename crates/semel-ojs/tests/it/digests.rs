//! Request digests: those of stored jobs must never change, and no two requests may share one.

use std::collections::HashMap;

use crate::read;

fn digest(members: &str) -> String {
    let id = "0197a3c0-1c2d-7e3f-8a4b-5c6d7e8f9a0b";
    let text = format!(r#"{{"id":"{id}","type":"a.b","args":[1]{members}}}"#);
    let digest = read(&text).body.request_digest.unwrap();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest is stored with each job. If it changed here, a caller that lost the answer would be refused
/// when it repeats the request.
#[test]
fn the_digests_of_ordinary_requests_are_frozen() {
    for (members, expected) in [
        ("", "ef0a614bec7555eef80d3978962c004097b2cc8ca0ed906b65ef7307670aa9e3"),
        (
            r#","queue":"mail","priority":7,"tags":["t"]"#,
            "aa7dd608543f15a384384b61e22c25e40eca00d6097148e667556a971ed8a7ad",
        ),
        (
            r#","options":{"queue":"mail","priority":7,"tags":["t"]}"#,
            "5ebfe45161162399fcb8f8864c00a797ec0b01ef4c33e48b5393fca5668011ec",
        ),
        (
            r#","meta":{"tenant":"acme","traceparent":"00-1-2-01"},"options":{"metadata":{"m":1}}"#,
            "4fde2dcc575a76a87108969b97e72805c6e3d22e52da761f68a0590acf835491",
        ),
        (
            r#","options":{"delay_until":"+PT2S","retry":{"max_attempts":4},"unique":{"keys":["type","args"]}}"#,
            "a0e64edbb512672ac4085415af9ed5d655dd2368229c1f7c5cc3d354d441c67e",
        ),
        (
            r#","x_team":"billing","acme.com/team":"a~b","options":{"x/y":1,"x~y":2}"#,
            "b12001df8a04430bf24ff4de4dca74966d7ff1d45aa76dd752d857fe7c20bab7",
        ),
        (
            r#","optional":1,"options~":2,"optionsx/y":3"#,
            "5c80e2ee0305f7ef2162ca0c60ee59c1b418c3837f60111811947e6ec53c94ca",
        ),
    ] {
        assert_eq!(digest(members), expected, "{members}");
    }
}

/// Whatever the names are: a member of `options`, and one beside it that is spelt like its pointer.
#[test]
fn no_two_requests_have_one_digest() {
    let mut known: HashMap<String, &str> = HashMap::new();
    for members in [
        r#","options":{"queue":"q"}"#,
        r#","options/queue":"q""#,
        r#","options~/queue":"q""#,
        r#","options~~/queue":"q""#,
        r#","options":{"~/queue":"q"}"#,
        r#","options":{"/queue":"q"}"#,
        r#","options//queue":"q""#,
        r#","options~1queue":"q""#,
        r#","options":{"options/queue":"q"}"#,
        r#","queue":"q""#,
    ] {
        if let Some(other) = known.insert(digest(members), members) {
            panic!("{members} and {other} are taken for one");
        }
    }
}
