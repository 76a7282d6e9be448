"""The relations of PostgreSQL's catalog that clients use, with their columns as of version 15.

One relation per paragraph: ``name | column:type ...``; types are i(nteger), o(bject number), b(igint), f(loat),
t(ruth), a(rray of text), n and w (arrays of integers and of object numbers), v and x (vectors of them, which clients
get as numbers separated by blanks), z (timestamp with time zone); text without one. Relations that have nothing to show
here stay empty.
"""

from __future__ import annotations

TYPES = {
    "": "VARCHAR",
    "i": "INTEGER",
    "o": "UINTEGER",  # distinguished from other numbers by its type, see tidegate.replica.wire.types
    "b": "BIGINT",
    "f": "DOUBLE",
    "t": "BOOLEAN",
    "a": "VARCHAR[]",
    "n": "INTEGER[]",
    "w": "UINTEGER[]",
    "v": "SMALLINT[]",
    "x": "UBIGINT[]",
    "z": "TIMESTAMP WITH TIME ZONE",
}

PG_CATALOG = """
pg_namespace | oid:o nspname nspowner:o nspacl:a
pg_class | oid:o relname relnamespace:o reltype:o reloftype:o relowner:o relam:o relfilenode:o reltablespace:o
    relpages:i reltuples:f relallvisible:i reltoastrelid:o relhasindex:t relisshared:t relpersistence relkind
    relnatts:i relchecks:i relhasrules:t relhastriggers:t relhassubclass:t relrowsecurity:t relforcerowsecurity:t
    relispopulated:t relreplident relispartition:t relrewrite:o relfrozenxid:i relminmxid:i relacl:a reloptions:a
    relpartbound
pg_attribute | attrelid:o attname atttypid:o attstattarget:i attlen:i attnum:i attndims:i attcacheoff:i atttypmod:i
    attbyval:t attalign attstorage attcompression attnotnull:t atthasdef:t atthasmissing:t attidentity attgenerated
    attisdropped:t attislocal:t attinhcount:i attcollation:o attacl:a attoptions:a attfdwoptions:a attmissingval
pg_type | oid:o typname typnamespace:o typowner:o typlen:i typbyval:t typtype typcategory typispreferred:t
    typisdefined:t typdelim typrelid:o typsubscript typelem:o typarray:o typinput typoutput typreceive typsend
    typmodin typmodout typanalyze typalign typstorage typnotnull:t typbasetype:o typtypmod:i typndims:i
    typcollation:o typdefaultbin typdefault typacl:a
pg_attrdef | oid:o adrelid:o adnum:i adbin
pg_constraint | oid:o conname connamespace:o contype condeferrable:t condeferred:t convalidated:t conrelid:o
    contypid:o conindid:o conparentid:o confrelid:o confupdtype confdeltype confmatchtype conislocal:t coninhcount:i
    connoinherit:t conkey:n confkey:n conpfeqop:w conppeqop:w conffeqop:w confdelsetcols:n conexclop:w conbin
pg_index | indexrelid:o indrelid:o indnatts:i indnkeyatts:i indisunique:t indnullsnotdistinct:t indisprimary:t
    indisexclusion:t indimmediate:t indisclustered:t indisvalid:t indcheckxmin:t indisready:t indislive:t
    indisreplident:t indkey:v indcollation:x indclass:x indoption:v indexprs indpred
pg_description | objoid:o classoid:o objsubid:i description
pg_database | oid:o datname datdba:o encoding:i datlocprovider datistemplate:t datallowconn:t datconnlimit:i
    datfrozenxid:i datminmxid:i dattablespace:o datcollate datctype daticulocale datcollversion datacl:a
pg_roles | rolname rolsuper:t rolinherit:t rolcreaterole:t rolcreatedb:t rolcanlogin:t rolreplication:t
    rolconnlimit:i rolpassword rolvaliduntil:z rolbypassrls:t rolconfig:a oid:o
pg_user | usename usesysid:o usecreatedb:t usesuper:t userepl:t usebypassrls:t passwd valuntil:z useconfig:a
pg_settings | name setting unit category short_desc extra_desc context vartype source min_val max_val enumvals:a
    boot_val reset_val sourcefile sourceline:i pending_restart:t
pg_am | oid:o amname amhandler amtype
pg_proc | oid:o proname pronamespace:o proowner:o prolang:o procost:f prorows:f provariadic:o prosupport prokind
    prosecdef:t proleakproof:t proisstrict:t proretset:t provolatile proparallel pronargs:i pronargdefaults:i
    prorettype:o proargtypes:x proallargtypes:w proargmodes:a proargnames:a proargdefaults protrftypes:w prosrc
    probin prosqlbody proconfig:a proacl:a
pg_enum | oid:o enumtypid:o enumsortorder:f enumlabel
pg_collation | oid:o collname collnamespace:o collowner:o collprovider collisdeterministic:t collencoding:i
    collcollate collctype colliculocale collversion
pg_inherits | inhrelid:o inhparent:o inhseqno:i inhdetachpending:t
pg_policy | oid:o polname polrelid:o polcmd polpermissive:t polroles:w polqual polwithcheck
pg_trigger | oid:o tgrelid:o tgparentid:o tgname tgfoid:o tgtype:i tgenabled tgisinternal:t tgconstrrelid:o
    tgconstrindid:o tgconstraint:o tgdeferrable:t tginitdeferred:t tgnargs:i tgattr:v tgargs tgqual tgoldtable
    tgnewtable
pg_tablespace | oid:o spcname spcowner:o spcacl:a spcoptions:a
pg_range | rngtypid:o rngsubtype:o rngmultitypid:o rngcollation:o rngsubopc:o rngcanonical rngsubdiff
pg_auth_members | roleid:o member:o grantor:o admin_option:t
pg_statistic_ext | oid:o stxrelid:o stxname stxnamespace:o stxowner:o stxstattarget:i stxkeys:v stxkind:a stxexprs
pg_publication | oid:o pubname pubowner:o puballtables:t pubinsert:t pubupdate:t pubdelete:t pubtruncate:t
    pubviaroot:t
pg_publication_rel | oid:o prpubid:o prrelid:o prqual prattrs:v
pg_publication_namespace | oid:o pnpubid:o pnnspid:o
pg_extension | oid:o extname extowner:o extnamespace:o extrelocatable:t extversion extconfig:w extcondition:a
pg_language | oid:o lanname lanowner:o lanispl:t lanpltrusted:t lanplcallfoid:o laninline:o lanvalidator:o lanacl:a
pg_opclass | oid:o opcmethod:o opcname opcnamespace:o opcowner:o opcfamily:o opcintype:o opcdefault:t opckeytype:o
pg_sequence | seqrelid:o seqtypid:o seqstart:b seqincrement:b seqmax:b seqmin:b seqcache:b seqcycle:t
pg_tables | schemaname tablename tableowner tablespace hasindexes:t hasrules:t hastriggers:t rowsecurity:t
pg_views | schemaname viewname viewowner definition
pg_matviews | schemaname matviewname matviewowner tablespace hasindexes:t ispopulated:t definition
pg_rewrite | oid:o rulename ev_class:o ev_type ev_enabled is_instead:t ev_qual ev_action
pg_depend | classid:o objid:o objsubid:i refclassid:o refobjid:o refobjsubid:i deptype
pg_foreign_table | ftrelid:o ftserver:o ftoptions:a
pg_foreign_server | oid:o srvname srvowner:o srvfdw:o srvtype srvversion srvacl:a srvoptions:a
pg_foreign_data_wrapper | oid:o fdwname fdwowner:o fdwhandler:o fdwvalidator:o fdwacl:a fdwoptions:a
pg_partitioned_table | partrelid:o partstrat partnatts:i partdefid:o partattrs:v partclass:x partcollation:x
    partexprs
pg_cast | oid:o castsource:o casttarget:o castfunc:o castcontext castmethod
pg_operator | oid:o oprname oprnamespace:o oprowner:o oprkind oprcanmerge:t oprcanhash:t oprleft:o oprright:o
    oprresult:o oprcom:o oprnegate:o oprcode oprrest oprjoin
pg_stat_activity | datid:o datname pid:i leader_pid:i usesysid:o usename application_name client_addr
    client_hostname client_port:i backend_start:z xact_start:z query_start:z state_change:z wait_event_type
    wait_event state backend_xid:i backend_xmin:i query_id:b query backend_type
pg_locks | locktype database:o relation:o page:i tuple:i virtualxid transactionid:i classid:o objid:o objsubid:i
    virtualtransaction pid:i mode granted:t fastpath:t waitstart:z
pg_shdescription | objoid:o classoid:o description
pg_indexes | schemaname tablename indexname tablespace indexdef
pg_stat_user_tables | relid:o schemaname relname seq_scan:b seq_tup_read:b idx_scan:b idx_tup_fetch:b n_tup_ins:b
    n_tup_upd:b n_tup_del:b n_tup_hot_upd:b n_live_tup:b n_dead_tup:b n_mod_since_analyze:b n_ins_since_vacuum:b
    last_vacuum:z last_autovacuum:z last_analyze:z last_autoanalyze:z vacuum_count:b autovacuum_count:b
    analyze_count:b autoanalyze_count:b
pg_shdepend | dbid:o classid:o objid:o objsubid:i refclassid:o refobjid:o deptype
pg_group | groname grosysid:o grolist:w
pg_sequences | schemaname sequencename sequenceowner data_type start_value:b min_value:b max_value:b increment_by:b
    cycle:t cache_size:b last_value:b
"""

INFORMATION_SCHEMA = """
schemata | catalog_name schema_name schema_owner default_character_set_catalog default_character_set_schema
    default_character_set_name sql_path
tables | table_catalog table_schema table_name table_type self_referencing_column_name reference_generation
    user_defined_type_catalog user_defined_type_schema user_defined_type_name is_insertable_into is_typed
    commit_action
columns | table_catalog table_schema table_name column_name ordinal_position:i column_default is_nullable data_type
    character_maximum_length:i character_octet_length:i numeric_precision:i numeric_precision_radix:i
    numeric_scale:i datetime_precision:i interval_type interval_precision:i character_set_catalog
    character_set_schema character_set_name collation_catalog collation_schema collation_name domain_catalog
    domain_schema domain_name udt_catalog udt_schema udt_name scope_catalog scope_schema scope_name
    maximum_cardinality:i dtd_identifier is_self_referencing is_identity identity_generation identity_start
    identity_increment identity_maximum identity_minimum identity_cycle is_generated generation_expression
    is_updatable
table_constraints | constraint_catalog constraint_schema constraint_name table_catalog table_schema table_name
    constraint_type is_deferrable initially_deferred enforced nulls_distinct
key_column_usage | constraint_catalog constraint_schema constraint_name table_catalog table_schema table_name
    column_name ordinal_position:i position_in_unique_constraint:i
views | table_catalog table_schema table_name view_definition check_option is_updatable is_insertable_into
    is_trigger_updatable is_trigger_deletable is_trigger_insertable_into
constraint_column_usage | table_catalog table_schema table_name column_name constraint_catalog constraint_schema
    constraint_name
referential_constraints | constraint_catalog constraint_schema constraint_name unique_constraint_catalog
    unique_constraint_schema unique_constraint_name match_option update_rule delete_rule
routines | specific_catalog specific_schema specific_name routine_catalog routine_schema routine_name routine_type
    module_catalog module_schema module_name udt_catalog udt_schema udt_name data_type character_maximum_length:i
    character_octet_length:i character_set_catalog character_set_schema character_set_name collation_catalog
    collation_schema collation_name numeric_precision:i numeric_precision_radix:i numeric_scale:i
    datetime_precision:i interval_type interval_precision:i type_udt_catalog type_udt_schema type_udt_name
    scope_catalog scope_schema scope_name maximum_cardinality:i dtd_identifier routine_body routine_definition
    external_name external_language parameter_style is_deterministic sql_data_access is_null_call sql_path
    schema_level_routine max_dynamic_result_sets:i is_user_defined_cast is_implicitly_invocable security_type
    to_sql_specific_catalog to_sql_specific_schema to_sql_specific_name as_locator created:z last_altered:z
    new_savepoint_level is_udt_dependent result_cast_from_data_type result_cast_as_locator
    result_cast_char_max_length:i result_cast_char_octet_length:i result_cast_char_set_catalog
    result_cast_char_set_schema result_cast_char_set_name result_cast_collation_catalog result_cast_collation_schema
    result_cast_collation_name result_cast_numeric_precision:i result_cast_numeric_precision_radix:i
    result_cast_numeric_scale:i result_cast_datetime_precision:i result_cast_interval_type
    result_cast_interval_precision:i result_cast_type_udt_catalog result_cast_type_udt_schema
    result_cast_type_udt_name result_cast_scope_catalog result_cast_scope_schema result_cast_scope_name
    result_cast_maximum_cardinality:i result_cast_dtd_identifier
parameters | specific_catalog specific_schema specific_name ordinal_position:i parameter_mode is_result as_locator
    parameter_name data_type character_maximum_length:i character_octet_length:i character_set_catalog
    character_set_schema character_set_name collation_catalog collation_schema collation_name numeric_precision:i
    numeric_precision_radix:i numeric_scale:i datetime_precision:i interval_type interval_precision:i udt_catalog
    udt_schema udt_name scope_catalog scope_schema scope_name maximum_cardinality:i dtd_identifier parameter_default
sequences | sequence_catalog sequence_schema sequence_name data_type numeric_precision:i numeric_precision_radix:i
    numeric_scale:i start_value minimum_value maximum_value increment cycle_option
triggers | trigger_catalog trigger_schema trigger_name event_manipulation event_object_catalog event_object_schema
    event_object_table action_order:i action_condition action_statement action_orientation action_timing
    action_reference_old_table action_reference_new_table action_reference_old_row action_reference_new_row
    created:z
check_constraints | constraint_catalog constraint_schema constraint_name check_clause
"""


def relations(spec: str) -> dict[str, dict[str, str]]:
    """Relation -> column -> DuckDB type.

    >>> relations("pg_am | oid:o amname")
    {'pg_am': {'oid': 'UINTEGER', 'amname': 'VARCHAR'}}
    """
    found: dict[str, dict[str, str]] = {}
    for entry in spec.strip().replace("\n    ", " ").splitlines():
        name, _, columns = entry.partition(" | ")
        pairs = (column.partition(":")[::2] for column in columns.split())
        found[name] = {column: TYPES[code] for column, code in pairs}
    return found
