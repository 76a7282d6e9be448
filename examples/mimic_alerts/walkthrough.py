# %% [markdown]
# # A shift on the ward
#
# Cells as in a notebook: editors that know `# %%` run them one by one; `python -m` with the name of this module runs them all.
# What happens here is what `tidegate demo` shows, without the page.

# %% The ward
# Eight patients, simulated from a seed. A course says what happens to each of them.

from tidegate.examples.mimic_alerts.app import hospital, start
from tidegate.examples.mimic_alerts.safety import judge
from tidegate.examples.mimic_alerts.shift import Doctor, Shift, WardClock
from tidegate.examples.mimic_alerts.source import Wish
from tidegate.examples.mimic_alerts.ward import Ward

ward = Ward(patients=8, minutes=6, seed=2)
for patient in ward.patients:
    print(f"{patient.bed}: {patient.story}, limit {patient.pap_limit:g} mmHg")

# %% One second of it
# Pressure (mmHg) and ECG (mV) of all patients, 125 samples each. In the engine they are packets.

pressure, ecg = Ward(patients=8, minutes=6, seed=2).second(0)
print(pressure.shape, f"mean of bed 1: {pressure[0].mean():.1f} mmHg, R peak {ecg[0].max():.2f} mV")

# %% The app
# Declaring it touches nothing. Its dataflows share one table.

app = hospital(deadline_s=60, quiet_s=180)
sharing = [name for name, one in app.procedures.items() if any(access.table == "med_events" for access in one.access)]
print("med_events is used by", ", ".join(sharing))

# %% The engine
# The clock is the ward's: deadlines count in the patients' time, however fast the shift is played.

clock = WardClock(ward.start)
engine = start(app, clock=clock)
shift = Shift(engine, ward, clock, doctor=None)
shift.admit()

# %% Until the first question
# Play second by second until someone must decide. No one does yet.

steps = ward.steps()
while not engine.questions():
    shift.step(next(steps))
question = engine.questions()[0]
advice = question.batches["recommendations" if question.stream == "decisions" else "rate_recommendations"][0]
print(f"{clock.now():%H:%M:%S} patient {question.key}: {advice.sign} {advice.value:.0f}, recommended {advice.drug}")

# %% Who waits for whom
# A round comes by and wants to give the same patient the same drug. It waits for the decision.

visit = engine.push("visits", [Wish(question.key, clock.now(), advice.drug)], batch_id=1_000_000)
held = engine.query("SELECT unit, held_by FROM tidegate.locks WHERE held_by IS NOT NULL AND unit = 'visit'").rows
assert not visit.done
print([tuple(row) for row in held])

# %% The doctor accepts
# The alert commits, then the visit runs, and refuses: given recently.

engine.answer(question, give=True, decided_by="the reader")
assert visit.done
shift.collect()
refused = shift.seen.of("visit_outcomes")[-1]
assert not refused.given
print(refused.reason)

# %% The rest of the shift
# Now a simulated doctor takes over.

shift.doctor = Doctor(seed=2)
for step in steps:
    step.visits.clear()  # their batch-ids would come after the one above
    shift.step(step)
shift.finish()
for row in engine.query("SELECT patient, drug, given_at, origin FROM med_events ORDER BY given_at"):
    print(f"{row.given_at:%H:%M:%S}  patient {row.patient}  {row.drug}  ({row.origin})")

# %% Was it safe?

verdict = judge(engine.query("SELECT * FROM med_events"), shift.seen.rows)
assert verdict.safe
print(verdict)
engine.close()
