//! Bugs that can be planted on purpose, to see whether the tests find them.
//!
//! Without the feature `planted`, which no default feature enables, [`is_planted`] is a constant and nothing of
//! this is compiled in.
//!
//! Read a line that asks [`is_planted`] as: if this bug were planted, then so. The bugs are listed here and nowhere
//! else; `cargo xtask planted` plants one after the other.

macro_rules! bugs {
    ($($bug:ident = $name:literal, $suite:ident: $breaks:literal;)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Bug {
            $(#[doc = $breaks] $bug,)*
        }

        impl Bug {
            /// Every bug.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// Its name, as `SEMEL_PLANTED` takes it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$bug => $name,)* }
            }

            /// What it breaks.
            pub const fn breaks(self) -> &'static str {
                match self { $(Self::$bug => $breaks,)* }
            }

            /// The suite that should find it.
            pub const fn suite(self) -> Suite {
                match self { $(Self::$bug => Suite::$suite,)* }
            }
        }
    };
}

/// A suite that looks for bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// The deterministic simulation.
    Simulation,
    /// The conformance kit, on the memory store.
    Kit,
    /// The published test vectors of unique keys.
    Vectors,
    /// Power cuts under the embedded store.
    Power,
    /// Disk failures under the embedded store.
    Disk,
    /// Reads of the embedded store that bypass its lock.
    Glance,
    /// Replay of the embedded store's journal.
    Journal,
}

impl Suite {
    /// The suite's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Simulation => "simulation",
            Self::Kit => "kit",
            Self::Vectors => "vectors",
            Self::Power => "power",
            Self::Disk => "disk",
            Self::Glance => "glance",
            Self::Journal => "journal",
        }
    }
}

bugs! {
    CheckThenInsert = "check-then-insert", Simulation: "an admission does not rely on the version of its key";
    VersionNotChecked = "version-not-checked", Simulation: "a commit checks no version";
    BatchBlind = "batch-blind", Simulation: "later decisions of a group do not see the jobs of earlier ones";
    BatchHalfApplied = "batch-half-applied", Simulation: "a refused all-or-nothing batch keeps what it wrote";
    ReplaceInTwoSteps = "replace-in-two-steps", Simulation: "a replacement cancels in one commit and creates in another";
    ReplaceFinished = "replace-finished", Simulation: "a replacement takes no notice of finished holders";
    FailOpen = "fail-open", Simulation: "when the store fails, a job is admitted without its key";
    StaleAnswered = "stale-answered", Simulation: "a decision whose group was stale is answered as if it held";
    AnswerBeforeCommit = "answer-before-commit", Simulation: "a decision is answered before its commit";
    DuplicateBeforeDurable = "duplicate-before-durable", Simulation: "a duplicate is answered before its holder is committed";
    RepeatedIdIgnored = "repeated-id-ignored", Simulation: "a request sent again under its id is decided anew";
    WindowOffByOne = "window-off-by-one", Simulation: "a window still blocks at the moment of its end";
    WindowNotRenewed = "window-not-renewed", Simulation: "a duplicate does not renew a sliding window";
    RetryFreesKey = "retry-frees-key", Simulation: "a job that waits for its next try does not block";
    ExpiredBlocks = "expired-blocks", Simulation: "a waiting job past its end blocks until it is swept";
    MismatchAccepted = "mismatch-accepted", Simulation: "other work under the same key is taken for a duplicate";
    ServerClock = "server-clock", Simulation: "decisions are taken by the server's clock, not the store's";
    KeyFreedAtStart = "key-freed-at-start", Simulation: "a job loses its key when its run begins, before its ack";
    ReleasedKeyHeld = "released-key-held", Simulation: "an operator's release leaves the key where it is";
    PurgeForgetsKey = "purge-forgets-key", Simulation: "a purge forgets a head that still blocks its like";
    LeaseNotChecked = "lease-not-checked", Simulation: "an ack is accepted whatever lease it carries";
    LeaseByWorkerOnly = "lease-by-worker-only", Simulation: "a worker's name is taken for its lease";
    FenceNotBurned = "fence-not-burned", Simulation: "a lease that ran out is as good as before";
    AttemptNotCounted = "attempt-not-counted", Simulation: "a grant does not count as an attempt";
    RetryBeyondMax = "retry-beyond-max", Simulation: "a job is tried once more than it may be";
    ReapLiveLease = "reap-live-lease", Simulation: "the reaper ends runs whose lease lasts";
    PromoteTwice = "promote-twice", Simulation: "a timer that fires twice makes a job available that runs already";
    PromoteEarly = "promote-early", Simulation: "a timer fires before its time";
    ExpiredClaimed = "expired-claimed", Simulation: "an expired job is granted until it is swept";
    FollowUpLost = "follow-up-lost", Simulation: "a run that the reaper ends does not let its follow-up go";
    FollowUpOverlaps = "follow-up-overlaps", Simulation: "a follow-up is granted while a run of its key is under way";
    FollowUpTooEarly = "follow-up-too-early", Simulation: "a follow-up is let go by the first of the runs it waits for";
    LastRequestLost = "last-request-lost", Simulation: "a follow-up keeps the args of the first request it took in";
    DuplicateShown = "duplicate-shown", Simulation: "a job that may not be shown is named in an answer";
    PausedQueueGives = "paused-queue-gives", Simulation: "a paused queue gives jobs";
    StepEndLost = "step-end-lost", Simulation: "the end of a step's job does not reach its workflow";
    ParentNotAwaited = "parent-not-awaited", Simulation: "a step is offered as soon as one of its parents has ended";
    OverlapIgnored = "overlap-ignored", Simulation: "a cron's tick takes no notice of a job that has not ended";
    LimitedGranted = "limited-granted", Simulation: "a store grants a job under a limit by itself";
    LimitNotReliedOn = "limit-not-relied-on", Simulation: "a start does not rely on the version of its limit's record";
    StartNotNoted = "start-not-noted", Simulation: "a start is not noted in its limit's record";
    EndedKeepsPlace = "ended-keeps-place", Simulation: "a run that has ended keeps its place in its limit";
    PeriodCutShort = "period-cut-short", Simulation: "a start counts for half of its rate's period";
    RequestForgotten = "request-forgotten", Simulation: "a request sent again under its Idempotency-Key is decided anew";
    RequestOfAnyContent = "request-of-any-content", Simulation: "other content under an Idempotency-Key is answered as the first was";
    TaskOutlivesSteps = "task-outlives-steps", Simulation: "a task goes on when its steps have failed";
    GroundForgotten = "ground-forgotten", Kit: "an admission on top of another decision's write does not rely on what was there before it";
    MixedNotChecked = "mixed-not-checked", Kit: "an answer on top of a write that may be applied to other holders relies on nothing";
    HeldBackOnce = "held-back-once", Kit: "a job held back is let go when the job before it is cancelled unstarted";
    NfcAfterSort = "nfc-after-sort", Vectors: "names are sorted before they are normalised";
    IntegerCollapse = "integer-collapse", Vectors: "integers beyond 2^53 are rounded into one key";
    AckBeforeFsync = "ack-before-fsync", Power: "a commit is answered before its record is on the disk";
    SyncBeforeWrite = "sync-before-write", Power: "a job, and whoever is its duplicate, is answered with the next commit's sync still to come";
    GlancedTooSoon = "glanced-too-soon", Glance: "a duplicate is answered at a glance while its holder is on its way to the disk";
    FolderNotSynced = "folder-not-synced", Power: "the name of a new file of the journal is not brought to the disk";
    CarriedBeforeSync = "carried-before-sync", Power: "the journal's file is used again before the rows are on the disk";
    SumNotChecked = "sum-not-checked", Power: "a torn record of the journal is taken for a whole one";
    StaleRecordRead = "stale-record-read", Journal: "what is left of a file's earlier use is taken for records";
    BackupNotSynced = "backup-not-synced", Power: "a copy is reported before it is on the disk";
    FailedSyncIgnored = "failed-sync-ignored", Disk: "a commit is answered although the disk could not be reached";
    FailedCommitKept = "failed-commit-kept", Disk: "what a failed commit did stays in memory";
    TypeNotInKey = "type-not-in-key", Vectors: "the type is no part of a key";
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(u8::MAX);

/// Whether this bug is planted.
#[cfg(feature = "planted")]
pub fn is_planted(bug: Bug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Whether this bug is planted: in this build, never.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is_planted(_bug: Bug) -> bool {
    false
}

/// Plants the bug of that name, in place of any other, for the whole process.
///
/// # Errors
/// When there is no such bug, or this build has no bugs to plant.
pub fn plant(name: &str) -> Result<(), &'static str> {
    let Some(_bug) = Bug::ALL.iter().find(|bug| bug.name() == name) else {
        return Err("there is no such bug");
    };
    #[cfg(feature = "planted")]
    {
        PLANTED.store(*_bug as u8, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }
    #[cfg(not(feature = "planted"))]
    Err("this build has no bugs; build it with --features semel-core/planted")
}
