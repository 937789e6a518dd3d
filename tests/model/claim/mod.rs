//! The claim protocol of one-transaction handlers, for one key.
//!
//! A state is the committed row, the sessions of Postgres with what is on the wire to and from them, and the requests in
//! the processes. What Postgres does at once is one step; a string of several commands is several. (The look-up, a message
//! of its own, travels with BEGIN here: the process does nothing between them that anyone could see.) Within the bound a
//! request may come in at any time at any process, whatever became of the ones before it: so retries, duplicates and
//! requests that arrive long after their client has hung up are all there, and no answer has to be modelled as lost.
//!
//! A request whose key its process remembers as completed reads the row in one statement, without a transaction; in the
//! model any process may remember any key.
//!
//! A handler may leave its transaction: a helper of it runs `COMMIT`, or rolls back and commits writes of its own, and may begin
//! another transaction; or one of its statements fails, so that nothing answers before the rollback. The endings ask for the
//! marks, and an escape is made final for its key in a transaction of its own.
//!
//! What that cannot do is stated here and checked: an effect that escaped is repeated only by a request that looked the key up
//! before `effects unknown` was stored. So its process died before that; or the connection that knows the witness was lost
//! before the ending had asked it; or the database stayed away while it was stored; or a rival claimed meanwhile, since the
//! lock went with the transaction (in the same process only past an attempt that is older than its lease). And a helper that
//! rolls back, commits and begins, and then fails, leaves nothing to see.
//!
//! Left out: what sqlx ends by itself, savepoints, and what is an escape without a commit (`RESET ALL`, `PREPARE TRANSACTION`);
//! fingerprints (every request is the same one), waiting for a duplicate's end (it asks again, as a retry does).

mod postgres;
mod server;

use stateright::{Checker, HasDiscoveries, Model, Property};

use postgres::{Act, Row, Session};
use server::{Answer, Phase, Purpose, Request};

/// The protocol, and what of it can be broken.
#[derive(Clone, Copy, Debug)]
struct Protocol {
    snapshot: Snapshot,
    /// Whether the advisory lock locks. On CockroachDB it does not.
    lock: bool,
    /// Whether the primary key judges at the insert.
    primary_key: bool,
    /// Whether the effects and the outcome are one commit.
    one_commit: bool,
    /// Whether the endings ask for the claim, which is local to its transaction.
    mark: bool,
    /// Whether they ask for the witness, which outlives a commit and nothing else.
    witness: bool,
    /// Whether a claim that is not there keeps the commit behind it from being reached.
    fence: bool,
    /// Whether it is stored that the effects are not known.
    stores_escapes: bool,
    /// Whether a request whose commit was not acknowledged looks the outcome up, or takes it for committed.
    looks_up_lost_commits: bool,
    /// Whether an outcome deletes the expired row in its place.
    replaces_expired: bool,
    /// Whether Postgres ends a transaction that sits idle.
    idle_timeout: bool,
    /// Whether a process drops a request's entry in its registry when the request ends.
    leaves_registry: bool,
}

/// When the snapshot of the look-up is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Snapshot {
    /// READ COMMITTED, in a statement after the lock.
    AfterLock,
    /// REPEATABLE READ and SERIALIZABLE; or READ COMMITTED, if one statement took the lock and looked up.
    BeforeLock,
}

const PROTOCOL: Protocol = Protocol {
    snapshot: Snapshot::AfterLock,
    lock: true,
    primary_key: true,
    one_commit: true,
    mark: true,
    witness: true,
    fence: true,
    stores_escapes: true,
    looks_up_lost_commits: true,
    replaces_expired: true,
    idle_timeout: true,
    leaves_registry: true,
};

/// How far the check goes.
#[derive(Clone, Copy, Debug)]
struct Bound {
    requests: u8,
    processes: u8,
    /// Crashes of a process, cuts of a connection, idle time-outs, restarts of Postgres, stalls beyond the lease: in all.
    faults: u8,
    /// How often the row's retention runs out, or a person frees the key.
    expiries: u8,
    /// How often a handler does to its transaction what it must not, in all.
    acts: u8,
    /// Whether a statement may fail in a transaction that a helper began after it had rolled the claim's back.
    fails_unseen: bool,
    /// Whether no effect at all may be repeated, also not after an escape.
    strict: bool,
}

struct Claim {
    protocol: Protocol,
    bound: Bound,
}

/// What a request made of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Outcome {
    /// The request that made it.
    by: u8,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Success,
    /// The handler's writes are rolled back.
    Refusal,
    /// The handler left its transaction. The row stays until a person frees the key.
    Unknown,
}

/// What a handler wrote, once it is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Effect {
    by: u8,
    retention: u8,
    /// It was not our commit.
    escaped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    row: Option<Row>,
    /// What was ever committed into the row's place, with the retention it belongs to.
    outcomes: Vec<Row>,
    effects: Vec<Effect>,
    sessions: Vec<Session>,
    requests: Vec<Request>,
    /// By process: the request that its registry holds.
    registries: Vec<Option<u8>>,
    faults: u8,
    acts: u8,
    /// Also the number of the current retention.
    expiries: u8,
    /// The retention in which a client was told last that the effects are not known.
    said_unknown: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    // The clients.
    Arrive { process: u8 },
    Recall { process: u8 },
    // The processes.
    Enter { request: u8 },
    AnswerFromRegistry { request: u8 },
    PassOverdueEntry { request: u8 },
    Act { session: usize, act: Act },
    Finish { request: u8, verdict: Verdict },
    Receive { session: usize },
    NoticeLoss { request: u8 },
    GiveUpLookingUp { request: u8 },
    GiveUpStoring { request: u8 },
    // Postgres.
    Execute { session: usize },
    EndDisconnected { session: usize },
    Sweep,
    // Time and misfortune, and the person who frees the key.
    Expire,
    Free,
    IdleTimeout { session: usize },
    Cut { session: usize },
    Crash { process: u8 },
    Restart,
}

/// How a handler ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verdict {
    Commit,
    Refuse,
    Release,
}

impl Action {
    fn is_fault(self) -> bool {
        matches!(
            self,
            Self::IdleTimeout { .. }
                | Self::Cut { .. }
                | Self::Crash { .. }
                | Self::Restart
                | Self::PassOverdueEntry { .. }
                | Self::GiveUpStoring { .. }
        )
    }
}

impl Model for Claim {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            row: None,
            outcomes: Vec::new(),
            effects: Vec::new(),
            sessions: Vec::new(),
            requests: Vec::new(),
            registries: vec![None; self.bound.processes.into()],
            faults: 0,
            acts: 0,
            expiries: 0,
            said_unknown: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.fair_actions(state, actions);
        if state.requests.len() < self.bound.requests.into() {
            // The processes are alike: the first request may as well come in at the first one.
            let processes = if state.requests.is_empty() { 1 } else { self.bound.processes };
            actions.extend((0..processes).map(|process| Action::Arrive { process }));
            if state.row.is_some_and(|row| row.is_live(state)) {
                let free = |process: &u8| state.registries[usize::from(*process)].is_none();
                actions.extend((0..processes).filter(free).map(|process| Action::Recall { process }));
            }
        }
        for (number, request) in (0..).zip(&state.requests) {
            if request.phase == (Phase::Asking { purpose: Purpose::Resolve }) {
                actions.push(Action::GiveUpLookingUp { request: number });
            }
        }
        if state.acts < self.bound.acts {
            self.acts(state, actions);
        }
        if let (Some(row), true) = (state.row, state.expiries < self.bound.expiries) {
            if row.outcome.kind == Kind::Unknown {
                actions.push(Action::Free);
            } else if row.is_live(state) {
                actions.push(Action::Expire);
            }
        }
        if state.row.is_some_and(|row| !row.is_live(state)) {
            actions.push(Action::Sweep);
        }
        if state.faults < self.bound.faults {
            self.faults(state, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.faults += u8::from(action.is_fault());
        match action {
            Action::Arrive { process } => self.arrive(&mut state, process),
            Action::Recall { process } => state.recall(process),
            Action::Enter { request } => self.enter(&mut state, request),
            Action::AnswerFromRegistry { request } => state.requests[usize::from(request)].end(Answer::InFlight),
            Action::PassOverdueEntry { request } => self.ask(&mut state, request, Purpose::Enter),
            Action::Act { session, act } => state.act(session, act),
            Action::Finish { request, verdict } => self.finish(&mut state, request, verdict),
            Action::Receive { session } => self.receive(&mut state, session),
            Action::NoticeLoss { request } => self.notice_loss(&mut state, request),
            Action::GiveUpLookingUp { request } => self.give_up_looking_up(&mut state, request),
            Action::GiveUpStoring { request } => self.give_up_storing(&mut state, request),
            Action::Execute { session } => self.execute(&mut state, session),
            Action::EndDisconnected { session } => _ = state.sessions.remove(session),
            Action::IdleTimeout { session } => {
                state.lose(session);
                state.sessions.remove(session);
            }
            Action::Sweep => state.row = None,
            Action::Expire => state.expiries += 1,
            Action::Free => (state.row, state.expiries) = (None, state.expiries + 1),
            Action::Cut { session } => {
                state.lose(session);
                state.sessions[session].connected = false;
            }
            Action::Crash { process } => state.crash(process),
            Action::Restart => {
                (0..state.sessions.len()).for_each(|session| state.lose(session));
                state.sessions.clear();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("at most one effect", |model: &Self, state: &State| {
                let counts = |effect: &&Effect| !effect.escaped || model.bound.strict;
                let of = |age| state.effects.iter().filter(counts).filter(move |effect| effect.retention == age);
                (0..=state.expiries).all(|age| of(age).count() <= 1)
            }),
            Property::always("no ending overlooks an escape", |_, state: &State| {
                let seen = |request: &Request| match request.phase {
                    Phase::Ended(Answer::Final { outcome, .. }) => outcome.kind == Kind::Unknown,
                    Phase::Ended(_) => false,
                    _ => true,
                };
                let escaped = |effect: &&Effect| effect.escaped && !state.requests[usize::from(effect.by)].lost;
                state.effects.iter().filter(escaped).all(|effect| seen(&state.requests[usize::from(effect.by)]))
            }),
            Property::always("nothing runs once the effects are said to be unknown", |_, state: &State| {
                let late = |effect: &Effect| state.requests[usize::from(effect.by)].late == Some(effect.retention);
                !state.effects.iter().any(late)
            }),
            Property::always("no answer denies an effect that is there", |_, state: &State| {
                let refusal = |effect: &Effect| Outcome { by: effect.by, kind: Kind::Refusal };
                let given = |outcome| state.requests.iter().any(|request| request.final_answer() == Some(outcome));
                state.effects.iter().all(|effect| !given(refusal(effect)))
            }),
            Property::always("at most one outcome", |_, state: &State| {
                (0..=state.expiries).all(|age| state.outcomes.iter().filter(|row| row.retention == age).count() <= 1)
            }),
            Property::always("an effect is stored with its outcome", |_, state: &State| {
                let outcome = |effect: &Effect| Outcome { by: effect.by, kind: Kind::Success };
                let stored = |effect: &Effect| Row { outcome: outcome(effect), retention: effect.retention };
                state.effects.iter().all(|effect| effect.escaped || state.outcomes.contains(&stored(effect)))
            }),
            Property::always("an outcome stays for its retention", |_, state: &State| {
                let lives = |row: &&Row| row.retention == state.expiries;
                state.outcomes.iter().filter(lives).all(|row| state.row == Some(*row))
            }),
            Property::always("a final answer is a stored outcome", |_, state: &State| {
                let stored = |outcome| state.outcomes.iter().any(|row| row.outcome == outcome);
                // What a rival has stored before stays.
                let beside = |by| state.outcomes.iter().any(|row| row.outcome.by != by);
                let unknown = |outcome: Outcome| {
                    outcome.kind == Kind::Unknown
                        && (state.requests[usize::from(outcome.by)].lost || beside(outcome.by))
                };
                let kept = |outcome| stored(outcome) || unknown(outcome);
                state.requests.iter().all(|request| request.final_answer().is_none_or(kept))
            }),
            Property::always("never stuck", |model: &Self, state: &State| {
                model.recovers(state, true) && model.recovers(state, false)
            }),
            Property::sometimes("a retry gets the first one's answer", |_, state: &State| {
                let mut requests = (0..).zip(&state.requests);
                requests.any(|(number, request)| request.final_answer().is_some_and(|outcome| outcome.by != number))
            }),
            Property::sometimes("a duplicate is told that it is in flight", |_, state: &State| {
                state.requests.iter().any(|request| request.phase == Phase::Ended(Answer::InFlight))
            }),
            Property::sometimes("a commit without acknowledgement is found", |_, state: &State| {
                let found =
                    |request: &Request| matches!(request.phase, Phase::Ended(Answer::Final { found: true, .. }));
                state.requests.iter().any(found)
            }),
            Property::sometimes("a commit arrives after its process has died", |_, state: &State| {
                let dead = |row: &Row| state.requests[usize::from(row.outcome.by)].phase == Phase::Died;
                state.outcomes.iter().any(dead)
            }),
        ];
        if self.bound.strict {
            properties.extend([
                Property::always("no effect is repeated after its process has died", |_, state: &State| {
                    !state.repeats_after(|phase| phase == Phase::Died)
                }),
                Property::always("no effect is repeated after its connection was lost", |_, state: &State| {
                    !state.repeats_after(|phase| matches!(phase, Phase::Ended(Answer::Unavailable)))
                }),
            ]);
        }
        if self.bound.acts > 0 {
            properties.extend([
                Property::sometimes("an escape is replayed, and a person frees the key", |_, state: &State| {
                    let replayed = |(number, request): (u8, &Request)| {
                        request
                            .final_answer()
                            .is_some_and(|outcome| outcome.kind == Kind::Unknown && outcome.by != number)
                    };
                    state.row.is_none() && (0..).zip(&state.requests).any(replayed)
                }),
                Property::sometimes("an aborted transaction is a stored refusal", |_, state: &State| {
                    let failed = |row: &Row| state.requests[usize::from(row.outcome.by)].failed;
                    state.outcomes.iter().any(|row| row.outcome.kind == Kind::Refusal && failed(row))
                }),
            ]);
        }
        properties
    }
}

impl Claim {
    /// What happens by itself if nothing goes wrong.
    fn fair_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for session in 0..state.sessions.len() {
            if self.can_execute(state, session) {
                actions.push(Action::Execute { session });
            }
            if state.sessions[session].connected && state.sessions[session].reply.is_some() {
                actions.push(Action::Receive { session });
            }
            if !state.sessions[session].connected {
                actions.push(Action::EndDisconnected { session });
            }
        }
        for (number, request) in (0..).zip(&state.requests) {
            match request.phase {
                Phase::Waiting => match self.registry_answers(state, request) {
                    Some(true) => actions.push(Action::AnswerFromRegistry { request: number }),
                    Some(false) => {}
                    None => actions.push(Action::Enter { request: number }),
                },
                Phase::Running { .. } if !state.is_acting(number) => {
                    let verdicts = [Verdict::Commit, Verdict::Refuse, Verdict::Release];
                    actions.extend(verdicts.map(|verdict| Action::Finish { request: number, verdict }));
                }
                Phase::Running { .. } | Phase::Ended(_) | Phase::Died => {}
                _ if state.session_of(number).is_none() => actions.push(Action::NoticeLoss { request: number }),
                _ => {}
            }
        }
    }

    /// What handlers that run may do to their transactions: each leaves its own once, and fails once.
    fn acts(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, session) in state.sessions.iter().enumerate() {
            let request = &state.requests[usize::from(session.request)];
            if !matches!(request.phase, Phase::Running { .. }) || !session.is_idle() {
                continue;
            }
            if !request.left {
                let leave = |commits| [true, false].map(|begins| Act::Leave { commits, begins });
                let acts = [true, false].map(leave).concat();
                actions.extend(acts.into_iter().map(|act| Action::Act { session: number, act }));
            }
            if session.can_fail(self.bound.fails_unseen) {
                actions.push(Action::Act { session: number, act: Act::Fail });
            }
        }
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, session) in state.sessions.iter().enumerate() {
            if session.connected {
                actions.push(Action::Cut { session: number });
            }
            if self.protocol.idle_timeout && session.can_time_out() {
                actions.push(Action::IdleTimeout { session: number });
            }
        }
        for process in 0..self.bound.processes {
            if state.requests.iter().any(|request| request.process == process && request.is_alive()) {
                actions.push(Action::Crash { process });
            }
        }
        if !state.sessions.is_empty() {
            actions.push(Action::Restart);
        }
        for (number, request) in (0..).zip(&state.requests) {
            if request.phase == Phase::StoringUnknown {
                actions.push(Action::GiveUpStoring { request: number });
            }
            if request.phase == Phase::Waiting && self.registry_answers(state, request).is_some() {
                actions.push(Action::PassOverdueEntry { request: number });
            }
        }
    }

    /// Whether, once nothing goes wrong any more, a client that keeps trying gets a final answer: with all processes going
    /// on (`thawed`), or with all of them frozen for ever and another one taking their place.
    fn recovers(&self, state: &State, thawed: bool) -> bool {
        let mut state = state.clone();
        let process = if thawed { 0 } else { state.add_process() };
        for _ in 0..4 {
            self.rest(&mut state, thawed, None);
            let request = state.requests.len() as u8;
            self.arrive(&mut state, process);
            self.rest(&mut state, thawed, Some(request));
            if state.requests[usize::from(request)].final_answer().is_some() {
                return true;
            }
        }
        false
    }

    /// Lets everything, or everything that is not frozen, come to rest, each in its turn. Handlers succeed.
    fn rest(&self, state: &mut State, thawed: bool, only: Option<u8>) {
        let mut actions = Vec::new();
        for turn in 0..500 {
            actions.clear();
            self.fair_actions(state, &mut actions);
            actions
                .retain(|action| !matches!(action, Action::Finish { verdict: Verdict::Refuse | Verdict::Release, .. }));
            if !thawed {
                actions.retain(|action| !state.belongs_to_frozen(*action, only));
                let idle = |session: &Session| session.can_time_out() && Some(session.request) != only;
                if let (true, Some(session)) = (self.protocol.idle_timeout, state.sessions.iter().position(idle)) {
                    actions.push(Action::IdleTimeout { session });
                }
            }
            if actions.is_empty() {
                return;
            }
            let action = actions[turn % actions.len()];
            *state = self.next_state(state, action).expect("every action leads somewhere");
        }
        panic!("does not come to rest: {state:#?}");
    }
}

impl State {
    fn session_of(&self, request: u8) -> Option<usize> {
        self.sessions.iter().position(|session| session.request == request && session.connected)
    }

    /// The connections of a dead process close; what it has sent may still arrive.
    fn crash(&mut self, process: u8) {
        for (number, request) in (0..).zip(&mut self.requests) {
            if request.process == process && request.is_alive() {
                (request.phase, request.lost) = (Phase::Died, true);
                for session in self.sessions.iter_mut().filter(|session| session.request == number) {
                    session.connected = false;
                }
            }
        }
        self.registries[usize::from(process)] = None;
    }

    /// A request finds the outcome without a claim.
    fn recall(&mut self, process: u8) {
        let outcome = self.row.expect("only what is there is recalled").outcome;
        self.requests.push(Request::new(process, Phase::Ended(Answer::Final { outcome, found: false })));
    }

    /// The connection is lost, and with it what it knew of an escape.
    fn lose(&mut self, session: usize) {
        let Session { request, connected, .. } = self.sessions[session];
        let request = &mut self.requests[usize::from(request)];
        request.lost |= connected && request.phase.needs_the_witness();
    }

    fn act(&mut self, session: usize, act: Act) {
        self.acts += 1;
        let request = &mut self.requests[usize::from(self.sessions[session].request)];
        match act {
            Act::Leave { .. } => request.left = true,
            Act::Fail => request.failed = true,
        }
        self.sessions[session].send(postgres::Message::Act(act));
    }

    /// Whether an effect escaped, what would have told of it was lost, and a request that came in later has an effect too.
    fn repeats_after(&self, end: impl Fn(Phase) -> bool) -> bool {
        let lost = |request: &Request| request.lost && end(request.phase);
        let repeats = |first: &Effect| {
            let later = |effect: &Effect| effect.by > first.by && effect.retention == first.retention;
            first.escaped && lost(&self.requests[usize::from(first.by)]) && self.effects.iter().any(later)
        };
        self.effects.iter().any(repeats)
    }

    fn is_acting(&self, request: u8) -> bool {
        self.session_of(request).is_some_and(|session| self.sessions[session].message.is_some())
    }

    fn add_process(&mut self) -> u8 {
        self.registries.push(None);
        (self.registries.len() - 1) as u8
    }

    fn belongs_to_frozen(&self, action: Action, only: Option<u8>) -> bool {
        let request = match action {
            Action::Enter { request }
            | Action::AnswerFromRegistry { request }
            | Action::Finish { request, .. }
            | Action::NoticeLoss { request } => Some(request),
            Action::Receive { session } => Some(self.sessions[session].request),
            _ => return false,
        };
        request != only
    }
}

const SMALL: Bound =
    Bound { requests: 2, processes: 2, faults: 1, expiries: 1, acts: 0, fails_unseen: false, strict: false };
/// One handler leaves its transaction and fails, or two do one of it.
const ESCAPES: Bound = Bound { acts: 2, ..SMALL };
const TWO_FAULTS: Bound = Bound { faults: 2, ..SMALL };
const THREE_REQUESTS: Bound = Bound { requests: 3, ..SMALL };

/// Checks every state within the bound, and says how many there are.
fn check(protocol: Protocol, bound: Bound) -> usize {
    let checker = Claim { protocol, bound }.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{states} states, {depth} deep: {protocol:?} within {bound:?}");
    states
}

/// Asserts that the checker finds `promise` broken, and shows the shortest way there.
fn assert_broken(protocol: Protocol, promise: &'static str) {
    assert_broken_within(SMALL, protocol, promise);
}

fn assert_broken_within(bound: Bound, protocol: Protocol, promise: &'static str) {
    let found = HasDiscoveries::AllOf([promise].into());
    let checker = Claim { protocol, bound }.checker().finish_when(found).spawn_bfs().join();
    for action in checker.assert_any_discovery(promise).into_actions() {
        println!("{action:?}");
    }
}

#[test]
fn the_protocol_keeps_its_promises() {
    assert!(check(PROTOCOL, ESCAPES) > 10_000);
}

#[test]
#[ignore = "takes minutes; run it with `--release -- --ignored` when the protocol changes"]
fn the_protocol_keeps_its_promises_within_larger_bounds() {
    for snapshot in [Snapshot::AfterLock, Snapshot::BeforeLock] {
        for lock in [true, false] {
            check(Protocol { snapshot, lock, ..PROTOCOL }, TWO_FAULTS);
            check(Protocol { snapshot, lock, ..PROTOCOL }, THREE_REQUESTS);
            check(Protocol { snapshot, lock, ..PROTOCOL }, Bound { acts: 2, ..TWO_FAULTS });
        }
    }
}

#[test]
fn the_primary_key_alone_suffices() {
    let without_lock = Protocol { lock: false, ..PROTOCOL };
    check(without_lock, SMALL);
    check(Protocol { snapshot: Snapshot::BeforeLock, ..PROTOCOL }, SMALL);
    check(Protocol { snapshot: Snapshot::BeforeLock, ..without_lock }, SMALL);
}

#[test]
fn a_look_up_in_the_snapshot_of_the_lock_and_no_primary_key_run_twice() {
    let mutation = Protocol { snapshot: Snapshot::BeforeLock, primary_key: false, ..PROTOCOL };
    assert_broken(mutation, "at most one effect");
}

#[test]
fn neither_lock_nor_primary_key_run_twice() {
    let mutation = Protocol { lock: false, primary_key: false, ..PROTOCOL };
    assert_broken(mutation, "at most one effect");
}

#[test]
fn the_lock_without_the_primary_key_stores_two_answers_around_a_refusal() {
    let mutation = Protocol { primary_key: false, ..PROTOCOL };
    assert_broken(mutation, "at most one outcome");
}

#[test]
fn two_commits_run_twice() {
    assert_broken(Protocol { one_commit: false, ..PROTOCOL }, "at most one effect");
}

#[test]
fn believing_in_a_lost_commit_loses_a_success() {
    let mutation = Protocol { looks_up_lost_commits: false, ..PROTOCOL };
    assert_broken(mutation, "a final answer is a stored outcome");
}

#[test]
fn an_expired_row_that_nobody_replaces_locks_the_key() {
    assert_broken(Protocol { replaces_expired: false, ..PROTOCOL }, "never stuck");
}

#[test]
fn a_frozen_process_without_the_idle_timeout_locks_the_key() {
    assert_broken(Protocol { idle_timeout: false, ..PROTOCOL }, "never stuck");
}

#[test]
fn a_registry_that_forgets_to_forget_locks_the_key() {
    assert_broken(Protocol { leaves_registry: false, ..PROTOCOL }, "never stuck");
}

/// Nothing dies, nothing is lost, and duplicates meet in one process: then no effect at all is repeated.
#[test]
fn an_escape_whose_process_and_connection_live_is_not_repeated() {
    check_strictly(Bound { processes: 1, faults: 0, ..ESCAPES });
}

fn check_strictly(bound: Bound) {
    let bound = Bound { strict: true, ..bound };
    let checker = Claim { protocol: PROTOCOL, bound }.checker().threads(2).spawn_bfs().join();
    checker.assert_no_discovery("at most one effect");
}

/// The limit of what can be promised, as the head of this file states it.
#[test]
fn an_escape_whose_process_or_connection_dies_before_it_is_stored_is_repeated() {
    let bound = Bound { processes: 1, strict: true, ..ESCAPES };
    assert_broken_within(bound, PROTOCOL, "no effect is repeated after its process has died");
    assert_broken_within(bound, PROTOCOL, "no effect is repeated after its connection was lost");
}

/// The lock goes with the transaction.
#[test]
fn an_escape_beside_a_rival_in_another_process_is_repeated() {
    let bound = Bound { faults: 0, strict: true, ..ESCAPES };
    assert_broken_within(bound, PROTOCOL, "at most one effect");
}

/// `ROLLBACK` takes the witness away, and an aborted transaction does not say whose it is.
#[test]
fn a_helper_that_rolls_back_commits_begins_and_fails_is_overlooked() {
    let bound = Bound { fails_unseen: true, ..ESCAPES };
    assert_broken_within(bound, PROTOCOL, "no ending overlooks an escape");
    assert_broken_within(bound, PROTOCOL, "no answer denies an effect that is there");
}

#[test]
fn endings_that_do_not_ask_for_the_claim_deny_an_effect() {
    let mutation = Protocol { mark: false, ..PROTOCOL };
    assert_broken_within(ESCAPES, mutation, "no answer denies an effect that is there");
    assert_broken_within(ESCAPES, mutation, "no ending overlooks an escape");
}

#[test]
fn endings_that_do_not_ask_for_the_witness_deny_an_effect() {
    let mutation = Protocol { witness: false, ..PROTOCOL };
    assert_broken_within(ESCAPES, mutation, "no answer denies an effect that is there");
    assert_broken_within(ESCAPES, mutation, "no ending overlooks an escape");
}

#[test]
fn a_check_that_does_not_stop_the_commit_gives_two_answers() {
    assert_broken_within(ESCAPES, Protocol { fence: false, ..PROTOCOL }, "a final answer is a stored outcome");
}

#[test]
fn an_escape_that_nobody_stores_is_repeated() {
    let promise = "nothing runs once the effects are said to be unknown";
    assert_broken_within(ESCAPES, Protocol { stores_escapes: false, ..PROTOCOL }, promise);
}
