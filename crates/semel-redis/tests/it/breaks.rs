//! More commits over several partitions, broken off after each of their steps.

use std::time::Duration;

use semel_core::enqueue::Outcome;
use semel_core::ident::{JobId, WorkflowId};
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::workflow::{Created, Plan};
use semel_engine::Engine;
use semel_store::StoreError;
use semel_store::backend::Filter;
use semel_testkit::crash::claim;
use semel_testkit::flows::{group, letters};
use semel_testkit::make::{Want, foreign_id, keyed};

use crate::halves::{Kind, apart, everywhere};
use crate::partitions::astray;

async fn ids(engine: &Engine) -> Vec<JobId> {
    let found = engine.list(Filter { limit: 100, ..Filter::default() }).await.unwrap();
    found.heads.iter().map(|head| head.id).collect()
}

/// An absorbed request: its id is remembered in another partition than that of the job that absorbs it.
struct Absorbed;

impl Absorbed {
    fn wish() -> Want {
        keyed("a").later(Duration::from_secs(3_600)).on_conflict("follow_up")
    }

    async fn ask(engine: &Engine, digest: u8) -> Result<Outcome, StoreError> {
        let want = Self::wish().id(astray("a", 1)).args(&format!("[{digest}]")).digest(digest);
        engine.enqueue(want.offer(), "").await
    }
}

impl Kind for Absorbed {
    type Ready = JobId;

    async fn prepare(&self, direct: &Engine) -> JobId {
        direct.enqueue(Self::wish().offer(), "").await.unwrap().inserted().unwrap()
    }

    async fn act(&self, victim: &Engine, _ready: &JobId) -> Result<(), StoreError> {
        Self::ask(victim, 2).await.map(drop)
    }

    async fn is_done(&self, direct: &Engine, job: JobId) -> bool {
        // Another request with the same id shows whose id it is.
        let told = Self::ask(direct, 3).await.unwrap();
        let is_done = matches!(told, Outcome::IdTaken(_));
        assert!(is_done || matches!(told, Outcome::Amended(_)), "{told:?}");
        let args = direct.job(job).await.unwrap().unwrap().body.args;
        assert_eq!(&*args, if is_done { "[2]" } else { "[3]" }, "an id is spent on what it asked for");
        assert_eq!(ids(direct).await, [job]);
        is_done
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_a_job_absorbs() {
    everywhere(Absorbed).await;
}

struct Creation;

impl Creation {
    fn plan() -> Plan {
        let mut plan = group(apart(3).iter().map(|name| keyed(name).offer()));
        plan.id = Some(WorkflowId::new(foreign_id(1)));
        plan.digest = Some([7; 32]);
        plan
    }
}

impl Kind for Creation {
    type Ready = ();

    async fn prepare(&self, _direct: &Engine) {}

    async fn act(&self, victim: &Engine, _ready: &()) -> Result<(), StoreError> {
        victim.create_workflow(Self::plan()).await.map(drop)
    }

    async fn is_done(&self, direct: &Engine, _ready: ()) -> bool {
        let is_done = match direct.create_workflow(Self::plan()).await.unwrap() {
            Created::Repeated(..) => true,
            Created::Done(..) => false,
            other => panic!("{other:?}"),
        };
        let runs = direct.claim(claim(9)).await.unwrap();
        assert_eq!((runs.len(), ids(direct).await.len()), (3, 3), "by half");
        for run in runs {
            let bearer = Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
            direct.complete(run.head.id, bearer, None).await.unwrap();
        }
        let workflow = direct.workflow(WorkflowId::new(foreign_id(1))).await.unwrap().unwrap();
        assert_eq!(letters(&workflow), "ccc");
        is_done
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workflow_that_is_created() {
    everywhere(Creation).await;
}
