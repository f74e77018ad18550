//! A store in a database with another locale, and a restored copy that takes the place of a lost store.

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::enqueue::Outcome;
use semel_core::lease::Bearer;
use semel_core::state::StateSet;
use semel_engine::Engine;
use semel_postgres::Postgres;
use semel_store::Backend;
use semel_store::clock::ManualClock;
use semel_testkit::cluster::{self, Cluster};
use semel_testkit::make::{Want, keyed};
use semel_testkit::{Fixture, Step, TempDir, conformance};

use crate::place::{Passing, Place, client};

fn fixture(url: &str) -> Fixture {
    let place = Passing(Place::at(url));
    Fixture::new(Step::Nothing, move |clock| place.0.open_with(clock))
}

/// Turkish: `I` is not the capital of `i`, and texts do not sort by their bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kit_passes_on_a_database_that_is_not_english() {
    let folder = TempDir::new();
    // Before version 15 a database uses a locale of the operating system, which must be installed.
    let turkish: &[&str] = match cluster::version() {
        ..15 => &["--locale=tr_TR.UTF-8"],
        _ => &["--locale-provider=icu", "--icu-locale=tr-TR"],
    };
    let mut cluster = Cluster::new_with(&folder.path().join("a"), turkish);
    cluster.start(&[]);
    let url = cluster.url();
    let told = client(&url).await;
    let row = told.query_one("SELECT upper('i') <> 'I', 'ı' < 'i'", &[]).await.unwrap();
    assert!(row.get::<_, bool>(0) && row.get::<_, bool>(1), "it is Turkish by default");
    conformance!(in turn, fixture(&url));
}

/// A text that the database's encoding cannot represent would fail the shared commit of every caller in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_cannot_write_every_text_is_refused() {
    let folder = TempDir::new();
    let mut cluster = Cluster::new_with(&folder.path().join("a"), &["--encoding=LATIN1", "--locale=C"]);
    cluster.start(&[]);
    let place = Place::at(&cluster.url());
    let refused = Postgres::open(place.address()).await.err().unwrap().to_string();
    assert!(refused.contains("LATIN1") && refused.contains("CREATE DATABASE"), "{refused}");
    let told = client(&cluster.url()).await;
    assert_eq!(Postgres::migrate(place.address()).await.unwrap_err().to_string(), refused);
    told.batch_execute("CREATE DATABASE shop ENCODING 'UTF8' TEMPLATE template0").await.unwrap();
    let url = cluster.url();
    let (server, _) = url.rsplit_once('/').unwrap();
    drop(Postgres::open(Place::at(&format!("{server}/shop")).address()).await.unwrap());
}

async fn engine(place: &Place) -> Engine {
    Engine::without_duties(Arc::new(Postgres::open(place.address()).await.unwrap())).unwrap()
}

/// Keys that live and ended jobs held when the copy was made are held in it; whatever came later never
/// existed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_restored_holds_the_keys_of_its_hour() {
    let folder = TempDir::new();
    let mut cluster = Cluster::new(&folder.path().join("a"));
    cluster.start(&[]);
    let place = Place::at(&cluster.url());
    let before = engine(&place).await;
    let strict = |name: &str| -> Want { keyed(name).states(StateSet::ALL) };
    let Outcome::Created(ended) = before.enqueue(strict("ended").offer(), "").await.unwrap() else {
        panic!()
    };
    before.cancel(ended.id, Bearer::default()).await.unwrap();
    let Outcome::Created(live) = before.enqueue(keyed("live").offer(), "").await.unwrap() else { panic!() };
    let mut copy = cluster.standby(&folder.path().join("b"));
    let Outcome::Created(lost) = before.enqueue(strict("later").offer(), "").await.unwrap() else { panic!() };
    before.stop().await;
    cluster.kill();
    copy.start(&[]);
    copy.promote();
    let restored = Place::at(&copy.url());
    let address = restored.address().clone().with_schema(place.schema()).unwrap();
    let after = Engine::without_duties(Arc::new(Postgres::open(&address).await.unwrap())).unwrap();
    for (want, holder) in [(strict("ended"), ended.id), (keyed("live"), live.id)] {
        let outcome = after.enqueue(want.offer(), "").await.unwrap();
        assert!(matches!(&outcome, Outcome::Rejected { .. }), "{outcome:?}");
        assert_eq!(outcome.absorbed_by(), Some(holder));
    }
    let Outcome::Created(again) = after.enqueue(strict("later").offer(), "").await.unwrap() else { panic!() };
    let is_new = again.version > lost.version && again.id != lost.id;
    assert!(is_new, "what is given out does not come again: {lost:?}, {again:?}");
    // In the copy, too, a key becomes free when its holder ends, and not before.
    after.cancel(live.id, Bearer::default()).await.unwrap();
    assert!(after.enqueue(keyed("live").offer(), "").await.unwrap().is_inserted());
    after.stop().await;
    let now = Postgres::open(&address).await.unwrap().load(&Reads::default()).await.unwrap().now;
    let year = ManualClock::at(now.saturating_add(Duration::from_secs(366 * 24 * 3600)));
    let late = Engine::without_duties(Arc::new(Postgres::open_with_clock(&address, year).await.unwrap()));
    let outcome = late.unwrap().enqueue(strict("ended").offer(), "").await.unwrap();
    assert_eq!(outcome.absorbed_by(), Some(ended.id));
}
