/* Solves with libsolv as mamba 1 and 2 set it up: the machine's virtual packages as installed and locked, each channel's
 * priority by its place. Arguments: strict|flexible, a file of virtual packages, then repodata.json of each channel, then
 * "--" and specs. Prints "name version build" of each package, or "refused" and the reasons. */
#include <solv/conda.h>
#include <solv/pool.h>
#include <solv/repo_conda.h>
#include <solv/solver.h>
#include <solv/transaction.h>
#include <stdio.h>
#include <string.h>

static Repo *load(Pool *pool, const char *path)
{
	Repo *repo = repo_create(pool, path);
	FILE *file = fopen(path, "r");
	if (!file || repo_add_conda(repo, file, 0)) {
		fprintf(stderr, "%s: %s\n", path, pool_errstr(pool));
		return NULL;
	}
	fclose(file);
	return repo;
}

int main(int count, char **words)
{
	Pool *pool = pool_create();
	Queue jobs, found;
	Id id;
	Solvable *each;
	int at = 3;

	if (count < 4 || pool_setdisttype(pool, DISTTYPE_CONDA) < 0) {
		fprintf(stderr, "this libsolv was made without conda's rules\n");
		return 2;
	}
	Repo *machine = load(pool, words[2]);
	if (!machine)
		return 2;
	pool_set_installed(pool, machine);
	for (; at < count && strcmp(words[at], "--"); at++) {
		Repo *repo = load(pool, words[at]);
		if (!repo)
			return 2;
		repo->priority = 100 - at;
	}
	pool_createwhatprovides(pool);
	queue_init(&jobs);
	FOR_REPO_SOLVABLES(machine, id, each)
		queue_push2(&jobs, SOLVER_LOCK | SOLVER_SOLVABLE, id);
	for (at++; at < count; at++)
		queue_push2(&jobs, SOLVER_INSTALL | SOLVER_SOLVABLE_PROVIDES, pool_conda_matchspec(pool, words[at]));

	Solver *solver = solver_create(pool);
	solver_set_flag(solver, SOLVER_FLAG_ALLOW_DOWNGRADE, 1);
	solver_set_flag(solver, SOLVER_FLAG_ALLOW_UNINSTALL, 1);
	solver_set_flag(solver, SOLVER_FLAG_STRICT_REPO_PRIORITY, !strcmp(words[1], "strict"));
	if (solver_solve(solver, &jobs)) {
		puts("refused");
		for (Id problem = 0; (problem = solver_next_problem(solver, problem));)
			puts(solver_problem2str(solver, problem));
		return 0;
	}
	Transaction *transaction = solver_create_transaction(solver);
	queue_init(&found);
	transaction_installedresult(transaction, &found);
	for (at = 0; at < found.count; at++) {
		each = pool_id2solvable(pool, found.elements[at]);
		if (each->repo != machine)
			printf("%s %s %s\n", pool_id2str(pool, each->name), pool_id2str(pool, each->evr),
			       solvable_lookup_str(each, SOLVABLE_BUILDFLAVOR));
	}
	return 0;
}
