"""What the schema guarantees beyond constraints: moves of `status`, a journal that never changes.

`UPDATE OF status` keeps the trigger silent on every statement that does not assign the column,
heartbeats above all.
"""

from django.db import migrations

STATUS_MOVES = """
CREATE FUNCTION agentruns_check_status_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'run % cannot move from % to %: a run moves from queued to running, cancelled '
        'or failed, from running to completed, failed or cancelled, and an ended run stays as it '
        'ended', OLD.id, OLD.status, NEW.status
        USING ERRCODE = 'check_violation', CONSTRAINT = 'status_only_moves_forward',
            TABLE = 'agentruns_agentrun';
END
$$;
CREATE TRIGGER status_only_moves_forward BEFORE UPDATE OF status ON agentruns_agentrun
    FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status AND NOT (
        (OLD.status = 'queued' AND NEW.status IN ('running', 'cancelled', 'failed'))
        OR (OLD.status = 'running' AND NEW.status IN ('completed', 'failed', 'cancelled'))))
    EXECUTE FUNCTION agentruns_check_status_move();
"""

STATUS_MOVES_REVERSED = """
DROP TRIGGER status_only_moves_forward ON agentruns_agentrun;
DROP FUNCTION agentruns_check_status_move();
"""

JOURNAL_ROWS = """
CREATE FUNCTION agentruns_refuse_event_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'event % of run % cannot change: rows of the journal are inserted, and deleted '
        'with the whole journal', OLD.seq, OLD.run_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'journal_rows_never_change',
            TABLE = 'agentruns_runevent';
END
$$;
CREATE TRIGGER journal_rows_never_change BEFORE UPDATE ON agentruns_runevent FOR EACH ROW
    EXECUTE FUNCTION agentruns_refuse_event_change();
"""

JOURNAL_ROWS_REVERSED = """
DROP TRIGGER journal_rows_never_change ON agentruns_runevent;
DROP FUNCTION agentruns_refuse_event_change();
"""

# Room on each page for the next version of every row on it: one statement beats for all runs of a
# worker, and an update that finds no room cannot stay on its page (HOT). At 80, as few as 39 % did.
# The queue's tables change faster than autovacuum's default of a fifth of the table.
STORAGE = """
ALTER TABLE agentruns_agentrun SET (fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE agentruns_conversation SET (fillfactor = 90);
"""

STORAGE_REVERSED = """
ALTER TABLE agentruns_agentrun RESET (fillfactor,
    autovacuum_vacuum_scale_factor, autovacuum_analyze_scale_factor);
ALTER TABLE agentruns_conversation RESET (fillfactor);
"""


class Migration(migrations.Migration):
    dependencies = [("agentruns", "0001_initial")]

    operations = [
        migrations.RunSQL(STATUS_MOVES, STATUS_MOVES_REVERSED),
        migrations.RunSQL(JOURNAL_ROWS, JOURNAL_ROWS_REVERSED),
        migrations.RunSQL(STORAGE, STORAGE_REVERSED),
    ]
